"""Distributions as pictures: SVG that takes its colours from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, FOOT = 360, 132, 22
BINS = 30


def histogram(label: str, values: Sequence[float], bound: float | None = None) -> str:
    """A histogram of seconds, with its median, its 95th percentile and its end; and the bound, where there is one."""
    ordered = sorted(values)
    top = max(ordered[-1], bound or 0.0) * 1.02 or 1e-6
    counts = [0] * BINS
    for value in ordered:
        counts[min(int(value / top * BINS), BINS - 1)] += 1
    tall = max(counts)
    step = WIDTH / BINS
    bars = []
    for number, count in enumerate(counts):
        if count:
            # A single one among thousands has to be seen, too.
            height = max(count / tall * (HEIGHT - 14), 2.0)
            beyond = " beyond" if bound is not None and number * top / BINS >= bound else ""
            tip = f"{duration(number * top / BINS)} to {duration((number + 1) * top / BINS)}: {count}"
            bars.append(
                f'<rect class="bar{beyond}" x="{number * step + 0.5:.1f}" y="{HEIGHT - height:.1f}" '
                f'width="{step - 1:.1f}" height="{height:.1f}" rx="1"><title>{tip}</title></rect>'
            )
    marks = [
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - 4}" y2="{HEIGHT + 4}"/>'
        for x in (quantile(ordered, 0.5) / top * WIDTH, quantile(ordered, 0.95) / top * WIDTH)
    ]
    limit = ""
    if bound is not None:
        x = bound / top * WIDTH
        limit = (
            f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>'
            f'<text class="limit-text" x="{x - 4:.1f}" y="10" text-anchor="end">goal {duration(bound)}</text>'
        )
    return (
        f'<figure class="histogram"><figcaption><strong>{escape(label)}</strong> <span>{_times(len(ordered))}</span>'
        f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT + FOOT}" role="img" '
        f'aria-label="{escape(_words(label, ordered))}">'
        f'{"".join(bars)}<line class="axis" x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>{"".join(marks)}{limit}'
        f'<text class="tick" x="0" y="{HEIGHT + 16}">0</text>'
        f'<text class="tick" x="{WIDTH}" y="{HEIGHT + 16}" text-anchor="end">{duration(top)}</text></svg>'
        f"<dl><div><dt>median</dt><dd>{duration(quantile(ordered, 0.5))}</dd></div>"
        f"<div><dt>95 %</dt><dd>{duration(quantile(ordered, 0.95))}</dd></div>"
        f"<div><dt>longest</dt><dd>{duration(ordered[-1])}</dd></div></dl></figure>"
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value that this part of all values does not exceed."""
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]


def duration(seconds: float) -> str:
    """For people."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _words(label: str, ordered: Sequence[float]) -> str:
    median, longest = duration(quantile(ordered, 0.5)), duration(ordered[-1])
    return f"{label}: {_times(len(ordered))}, median {median}, longest {longest}"
