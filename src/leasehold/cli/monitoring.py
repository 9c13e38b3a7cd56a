"""``leasehold monitoring``: the dashboard and the alert rules that come with the package."""

from __future__ import annotations

from importlib.resources import files

import click

_FILES = {"grafana": "grafana.json", "alerts": "alerts.yml"}


@click.command(
    "monitoring",
    short_help="Print the Grafana dashboard, or the alert rules for Prometheus.",
    epilog="""\b
Examples:
  leasehold monitoring grafana > leasehold.json      # import it in Grafana
  leasehold monitoring alerts > leasehold-alerts.yml # name it in rule_files of prometheus.yml
""",
)
@click.argument("what", type=click.Choice(list(_FILES)))
def command(what: str) -> None:
    """Print the Grafana dashboard (JSON), or the alert rules for Prometheus (YAML)."""
    click.echo(files("leasehold.telemetry").joinpath(_FILES[what]).read_text(encoding="utf-8"), nl=False)
