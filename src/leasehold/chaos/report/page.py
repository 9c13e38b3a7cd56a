"""The page: everything in one file that asks nothing of anybody, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from leasehold import __version__
from leasehold.chaos.checkers import Verdict
from leasehold.chaos.checkers.gaps import BOUNDS, ENGINE_BACK, USUAL
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.report.goals import Goal
from leasehold.chaos.report.histogram import histogram
from leasehold.chaos.report.picture import MOST, picture

SIGNS = {"held": "✓", "violated": "✕", "unknown": "?", "not asked": "—"}
SHOWN = (
    "Not held against it: a fault had stopped the holder or taken its lease, or the resource was one without a fence. "
    "Open the line to see each."
)
ORDER = ("violated", "unknown", "held", "not asked")


def page(record: Record, verdicts: list[Verdict], met: list[Goal]) -> str:
    """The whole page."""
    style, script = _part("page.css"), _part("page.js")
    run = record.run
    title = escape(f"{run.subject} on {run.engine}: {run.workload}")
    body = "\n".join(
        (
            _head(record, verdicts),
            _verdicts(verdicts),
            _time_line(),
            _distributions(record, verdicts),
            _goals(met),
            _faults(record),
            _engine(record),
        )
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
<footer>{escape(_made())}. Zero means “not seen in this run”, not “impossible”.</footer>
</main>
<script type="application/json" id="data">{_data(picture(record, verdicts))}</script>
<script>{script}</script>
</body>
</html>
"""


def _made() -> str:
    """By which version, when, and on what machine."""
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return f"Made by Leasehold {__version__} on {when} ({machine}, {os.cpu_count()} processors)"


def _part(name: str) -> str:
    return files("leasehold.chaos.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing from anywhere, and of what stands in the page only this style and this script."""
    own = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(data: dict[str, Any]) -> str:
    """JSON in which nothing can end the element that it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _head(record: Record, verdicts: list[Verdict]) -> str:
    run = record.run
    broken = [verdict.name for verdict in verdicts if verdict.status == "violated"]
    open_ones = sum(verdict.status == "unknown" for verdict in verdicts)
    held = sum(verdict.status == "held" for verdict in verdicts)
    if broken:
        state, text = "violated", f"{len(broken)} of {len(broken) + open_ones + held} claims violated"
    elif open_ones:
        state, text = "unknown", f"{held} claims held, {open_ones} unknown"
    else:
        state, text = "held", f"All {held} claims held"
    facts = [
        ("engine", run.engine),
        ("at", run.address),
        ("library", run.subject),
        ("workload", run.workload),
        ("workers", str(run.workers)),
        ("TTL", f"{run.ttl:g} s"),
        ("lasted", f"{record.ended_at:.1f} s"),
        ("grants", f"{len(record.leases):,}"),
        ("events", f"{len(record.events):,}"),
        ("faults", f"{len(record.faults):,}"),
        ("seed", str(run.seed)),
    ]
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"""<header>
<p class="eyebrow">Leasehold chaos report</p>
<h1 class="{state}"><span class="sign" aria-hidden="true">{SIGNS[state]}</span> {escape(text)}</h1>
<dl class="facts">{rows}</dl>
<div class="command"><code id="command">{escape(run.command)}</code><button type="button" id="copy">Copy</button></div>
</header>"""


def _verdicts(verdicts: list[Verdict]) -> str:
    told = [verdict for verdict in verdicts if verdict.status != "not asked" or verdict.shown]
    rest = [verdict for verdict in verdicts if verdict not in told]
    rows = "".join(_row(one) for one in sorted(told, key=lambda one: ORDER.index(one.status)))
    reasons = "; ".join(f"<strong>{escape(one.name)}</strong> ({escape(one.why)})" for one in rest)
    not_asked = f'<p class="not-asked">Not asked in this run: {reasons}.</p>' if rest else ""
    return f"""<section aria-labelledby="verdicts"><h2 id="verdicts">Verdicts</h2>
<div class="verdicts">{rows}</div>{not_asked}</section>"""


def _row(verdict: Verdict) -> str:
    """A line that says it all, and what stands behind it."""
    figures = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(_figure(value))}</dd></div>"
        for name, value in verdict.figures.items()
    )
    why = f'<p class="why">{escape(verdict.why)}</p>' if verdict.why else ""
    found = "".join(
        _found(verdict, kind, label)
        for kind, label in (("violations", "Violations"), ("shown", "Shown, not held against it"))
    )
    opened = " open" if verdict.status == "violated" else ""
    shown = f'<span class="chip" title="{SHOWN}">{len(verdict.shown):,} shown</span>' if verdict.shown else ""
    return f"""<details class="verdict {verdict.status.replace(" ", "-")}"{opened}><summary>
<span class="sign" aria-hidden="true">{SIGNS[verdict.status]}</span>
<span class="property">{escape(verdict.name)}</span>
<span class="claim">{escape(verdict.claim)} {shown}</span>
<span class="judged"><strong>{verdict.judged:,}</strong> {escape(verdict.of)}</span>
<span class="status">{verdict.status}</span></summary>
<div class="behind">{why}<dl class="figures">{figures}</dl>{found}</div></details>"""


def _found(verdict: Verdict, kind: str, label: str) -> str:
    found = verdict.violations if kind == "violations" else verdict.shown
    if not found:
        return ""
    first = found[:MOST]
    items = "".join(
        f'<li><button type="button" class="jump" data-property="{escape(verdict.name)}" data-number="{number}" '
        f'data-proven="{int(kind == "violations")}"><time>{one.at:.3f} s</time> {escape(one.text)}</button></li>'
        for number, one in enumerate(first)
    )
    more = f'<p class="more">and {len(found) - MOST:,} more, in report.json</p>' if len(found) > MOST else ""
    return f'<div class="found {kind}"><h3>{label} ({len(found):,})</h3><ol>{items}</ol>{more}</div>'


def _figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}".rstrip("0").rstrip(".")


def _time_line() -> str:
    """Only its frame: the script draws it from the data."""
    return """<section aria-labelledby="time-line"><h2 id="time-line">Time line</h2>
<div class="toolbar">
<div class="group">
<button type="button" id="in" title="Zoom in (+)">+</button>
<button type="button" id="out" title="Zoom out (-)">&minus;</button>
<button type="button" id="all" title="Show everything (0)">All</button>
</div>
<div class="group">
<button type="button" id="previous">&lsaquo; Violation</button>
<button type="button" id="next">Violation &rsaquo;</button>
</div>
<output id="range"></output>
</div>
<div id="legend"></div>
<div id="chart" tabindex="0" aria-label="Workers over time. Arrow keys move, plus and minus zoom, 0 shows everything.">
<canvas id="lanes"></canvas><canvas id="overview"></canvas><div id="tip" role="status" hidden></div>
</div>
<div id="detail" hidden></div>
<p class="hint">Scroll to zoom, drag to move, click on anything for more. Arrow keys, <kbd>+</kbd>,
<kbd>&minus;</kbd> and <kbd>0</kbd> work, too.</p>
</section>"""


def _distributions(record: Record, verdicts: list[Verdict]) -> str:
    leases, slack = BOUNDS.get(record.run.engine, USUAL)
    lapse = leases * record.run.ttl
    bounds = {"after a death": lapse + slack, "after the engine came back": lapse + max(ENGINE_BACK, slack)}
    labels = {
        "hand-over": "From a release to the next holder",
        "after a death": "From the death of a holder to the next",
        "after the engine came back": "From the engine's return to the next grant",
        "told after its deadline": "From a lease's deadline to its holder being told",
    }
    drawn = [
        histogram(labels.get(label, label), values, bounds.get(label))
        for verdict in verdicts
        for label, values in verdict.samples.items()
    ]
    inner = f'<div class="histograms">{"".join(drawn)}</div>' if drawn else "<p>Nothing was measured in this run.</p>"
    return f'<section aria-labelledby="times"><h2 id="times">How long it took</h2>{inner}</section>'


def _goals(met: list[Goal]) -> str:
    words = {True: ("held", "met"), False: ("violated", "missed"), None: ("not-asked", "not asked")}
    rows = "".join(
        f'<tr class="{words[goal.met][0]}"><td>{goal.id}</td><td>{escape(goal.text)}</td><td>{escape(goal.seen)}</td>'
        f'<td><span class="chip">{words[goal.met][1]}</span></td><td>{escape(goal.missed_by)}</td></tr>'
        for goal in met
        if not goal.shown_by
    )
    others = "".join(
        f"<tr><td>{goal.id}</td><td>{escape(goal.text)}</td><td><code>{escape(goal.shown_by)}</code></td></tr>"
        for goal in met
        if goal.shown_by
    )
    return f"""<section aria-labelledby="goals"><h2 id="goals">Goals</h2><div class="scroll"><table>
<thead><tr><th></th><th>goal</th><th>seen</th><th></th><th>missed by</th></tr></thead>
<tbody>{rows}</tbody></table></div>
<details class="elsewhere"><summary>Goals that no run can check, and what checks them</summary>
<div class="scroll"><table><thead><tr><th></th><th>goal</th><th>checked by</th></tr></thead>
<tbody>{others}</tbody></table></div>
<p>In a checkout of Leasehold. What was seen last stands in its documentation, under “Goals, with numbers”.</p>
</details></section>"""


def _faults(record: Record) -> str:
    counts: dict[str, int] = dict.fromkeys(record.run.faults, 0)
    for fault in record.faults:
        counts[fault.name] = counts.get(fault.name, 0) + 1
    done = "".join(
        f"<li><span>{escape(name)}</span> <strong>{count}&times;</strong></li>" for name, count in counts.items()
    )
    left_out = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(why)}</dd></div>" for name, why in record.run.left_out.items()
    )
    made = f'<ul class="faults">{done}</ul>' if done else "<p>No faults were made.</p>"
    missing = f'<h3>Left out</h3><dl class="left-out">{left_out}</dl>' if left_out else ""
    return f'<section aria-labelledby="faults"><h2 id="faults">Faults</h2>{made}{missing}</section>'


def _engine(record: Record) -> str:
    promise = record.run.guarantee
    if promise is None:
        return ""
    rows = [
        ("not guaranteed", promise.not_guaranteed),
        ("tokens", promise.tokens),
        ("a loss is told", promise.loss_told),
        ("takeover", promise.takeover),
        ("enforce with", promise.enforce_with),
    ]
    told = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in rows)
    return f"""<section aria-labelledby="engine"><h2 id="engine">What this engine promises</h2>
<dl class="left-out">{told}</dl></section>"""
