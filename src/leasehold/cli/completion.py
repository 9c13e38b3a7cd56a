"""``leasehold completion``: the script that teaches a shell to complete verbs, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    "completion",
    short_help="Print the completion script of a shell.",
    epilog="""\b
Examples:
  leasehold completion bash > ~/.local/share/bash-completion/completions/leasehold
  leasehold completion zsh > "${fpath[1]}/_leasehold"
  leasehold completion fish > ~/.config/fish/completions/leasehold.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes verbs, options and the names that are held."""
    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(ctx.find_root().command, {}, "leasehold", "_LEASEHOLD_COMPLETE")
    # Its own `source` would first ask which bash is installed here; the script may be meant for another machine.
    click.echo(complete.source_template % complete.source_vars())
