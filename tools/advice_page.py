"""Write the page with the decision tree, and its picture, from the tree that `leasehold advise` walks.

    python tools/advice_page.py         writes docs/advice.md and docs/img/advice.svg

A test sees that the committed files are what this would write.
"""

from __future__ import annotations

import textwrap
from html import escape
from pathlib import Path
from typing import NamedTuple

from leasehold.advice.engines import SYSTEMS
from leasehold.advice.tree import FIRST, LEAVES, QUESTIONS, ways

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, ROW = 940, 86
QUESTION_X, QUESTION_WIDTH = 60, 470
LEAF_X, LEAF_WIDTH = 650, 270

INTRODUCTION = """\
# Which one?

Most who ask for a lock need something else. `leasehold advise` asks these questions in the terminal and answers with
the pattern, the engine, what is guaranteed, what would break it, and a program that runs; this page is the same tree.

![The questions, one below the other; each answer leads to a pattern or to another question](img/advice.svg)

```console
$ leasehold advise -a harmless=no -a repeated=yes --json
$ leasehold advise -a harmless=no -a repeated=yes --sample
```

"""


class Box(NamedTuple):
    """Something in the picture."""

    x: int
    y: int
    width: int
    lines: list[str]
    style: str

    @property
    def height(self) -> int:
        """Room for its lines."""
        return 18 * len(self.lines) + 20

    def svg(self) -> str:
        """Drawn."""
        place = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
        middle = self.x + self.width // 2
        texts = [
            f'<text class="{self.style}" x="{middle}" y="{self.y + 24 + 18 * number}">{escape(line)}</text>'
            for number, line in enumerate(self.lines)
        ]
        return "\n".join([f'<rect class="{self.style}" {place} rx="8"/>', *texts])


STYLE = """\
<style>
  svg { font: 14px sans-serif; }
  rect.question { fill: #eef2ff; stroke: #6366f1; } rect.leaf { fill: #ecfdf5; stroke: #059669; }
  text { text-anchor: middle; fill: #1f2937; } text.leaf { font-weight: bold; }
  path { fill: none; stroke: #6b7280; stroke-width: 1.5; marker-end: url(#arrow); }
  text.answer { fill: #374151; font-style: italic; }
</style>
<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
<polygon points="0,0 10,5 0,10" fill="#6b7280"/></marker></defs>"""


def picture() -> str:
    """The tree: questions on the left, in the order in which they are asked, and patterns on the right."""
    order = [FIRST, *(name for name in QUESTIONS if name != FIRST)]
    boxes = {
        name: Box(QUESTION_X, 20 + number * ROW, QUESTION_WIDTH, textwrap.wrap(QUESTIONS[name].text, 62), "question")
        for number, name in enumerate(order)
    }
    leaves, next_y = {}, 20
    for name in order:
        for answer in (QUESTIONS[name].yes, QUESTIONS[name].no):
            if answer in LEAVES:
                y = max(next_y, boxes[name].y)
                leaves[answer] = Box(LEAF_X, y, LEAF_WIDTH, textwrap.wrap(LEAVES[answer].title, 30), "leaf")
                next_y = y + leaves[answer].height + 12
    drawn = [box.svg() for box in (boxes | leaves).values()]
    for name in order:
        for word, target in (("yes", QUESTIONS[name].yes), ("no", QUESTIONS[name].no)):
            drawn.append(_arrow(boxes[name], (boxes | leaves)[target], word))
    height = max(box.y + box.height for box in (boxes | leaves).values()) + 20
    background = f'<rect x="0" y="0" width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    parts = [STYLE, background, *drawn]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _arrow(source: Box, target: Box, word: str) -> str:
    if target.style == "leaf":
        y, end = source.y + source.height // 2, target.y + target.height // 2
        shift = 8 if word == "no" else -8
        x = source.x + source.width
        path = f'<path d="M{x} {y + shift} C{x + 60} {y + shift} {target.x - 60} {end} {target.x} {end}"/>'
        return path + f'<text class="answer" x="{x + 22}" y="{y + shift + (16 if word == "no" else -4)}">{word}</text>'
    if target.y - source.y <= ROW:
        x = source.x + source.width // 2 + (60 if word == "no" else -60)
        path = f'<path d="M{x} {source.y + source.height} V{target.y}"/>'
        return path + f'<text class="answer" x="{x + 20}" y="{target.y - 12}">{word}</text>'
    # Past the questions in between, on the side where no pattern is.
    y, end = source.y + source.height // 2, target.y + target.height // 2
    path = f'<path d="M{source.x} {y} H{source.x - 36} V{end} H{target.x}"/>'
    return path + f'<text class="answer" x="{source.x - 18}" y="{y - 6}">{word}</text>'


def page() -> str:
    """The page."""
    parts = [INTRODUCTION, "## The questions\n"]
    for question in QUESTIONS.values():
        names = {
            word: f"[{LEAVES[to].title}](#{to})" if to in LEAVES else f"*{QUESTIONS[to].text}*"
            for word, to in (("Yes", question.yes), ("No", question.no))
        }
        answers = "\n".join(f"- {word}: {to}" for word, to in names.items())
        parts.append(f"**{question.text}** {question.why}\n\n{answers}\n")
    reached = dict.fromkeys(leaf.name for _, leaf in ways())
    for name in reached:
        leaf = LEAVES[name]
        parts.append(
            f"## {leaf.title} {{ #{name} }}\n\n{leaf.what}\n\n**Guarantee:** {leaf.guarantee}\n\n"
            f"**What would break it:** {leaf.breaks}\n\n```python\n{leaf.sample}```\n\n"
            f"More: [{leaf.page}]({leaf.page})\n"
        )
    parts.append(_engines())
    return "\n".join(parts)


def _engines() -> str:
    rows = [
        f"| {system.title} | {'yes' if system.fit else 'only behind a fence'} | {system.why} |"
        for system in SYSTEMS.values()
    ]
    return (
        "## Which engine\n\nOf what you run already, the first of these for a lock that protects state, "
        "and the last for one that only saves work:\n\n| you run | fit for correctness | |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    (DOCS / "advice.md").write_text(page(), encoding="utf-8")
    (DOCS / "img" / "advice.svg").write_text(picture(), encoding="utf-8")
