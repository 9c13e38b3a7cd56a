"""Rules: how one is declared, and where they are found."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from leasehold.lint.finding import Finding, LintError, quoted
from leasehold.lint.module import Module

Check = Callable[[Module], Iterator[Finding]]

FAMILIES = {
    "LH10": "acquire",
    "LH11": "release",
    "LH12": "renew",
    "LH13": "wait",
    "LH14": "ids",
    "LH15": "SQL",
    "LH16": "quorum",
    "LH17": "files",
    "LH18": "fences",
    "LH19": "idempotency and async",
}
"""What the rules whose code begins so are about."""

_SECTION = re.compile(r"^## (\w+)[^\n]*\n+(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"```py\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """One kind of dangerous code: its code, its name, its page, and how it is found."""

    code: str
    name: str
    page: str
    words: tuple[str, ...]
    """A file without any of these is not looked at."""
    check: Check
    by_default: bool
    """Whether it runs without being selected by name."""

    @property
    def family(self) -> str:
        """What it is about."""
        return FAMILIES[self.code[:4]]

    @property
    def title(self) -> str:
        """The first line of its page."""
        return self.page.partition("\n")[0].rstrip(".")

    def section(self, heading: str) -> str:
        """One section of its page: Why, Bad, Good, Not."""
        found: dict[str, str] = {name: text.strip() for name, text in _SECTION.findall(self.page)}
        return found.get(heading, "")

    def examples(self, heading: str) -> list[str]:
        """The code in a section."""
        return [code.rstrip() + "\n" for code in _CODE.findall(self.section(heading))]


def rule(
    code: str, name: str, page: str | None, *, words: Sequence[str], by_default: bool = True
) -> Callable[[Check], Rule]:
    """Declare the function below as the check of a rule; `page` is the docstring of its file."""

    def declared(check: Check) -> Rule:
        return Rule(code, name, (page or "").strip(), tuple(words), check, by_default)

    return declared


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, in the order of its code."""
    from leasehold.lint import rules

    names = [f"{rules.__name__}.{module.name}" for module in pkgutil.iter_modules(rules.__path__)]
    found: list[Rule] = [importlib.import_module(name).check for name in names]
    return tuple(sorted(found, key=lambda one: one.code))


def rule_named(code: str) -> Rule:
    """The rule with this code (``LH110``) or name (``unconditional-release``)."""
    wanted = code.strip().lower()
    for one in all_rules():
        if wanted in (one.code.lower(), one.name):
            return one
    near = [one for one in all_rules() if wanted and (wanted in one.name or one.code.lower().startswith(wanted[:4]))]
    hint = ", ".join(f"{one.code} ({one.name})" for one in near[:5]) or "LH101 (setnx-then-expire)"
    raise LintError(f"there is no rule {quoted(code)}; there are {hint} and others: leasehold explain lists them")


def selected(select: Sequence[str], extend: Sequence[str], ignore: Sequence[str]) -> tuple[Rule, ...]:
    """The rules to run. Each entry is a code, the beginning of one (``LH11``), a name, or ``ALL``."""
    chosen = [one for one in all_rules() if (_is_in(one, select) if select else one.by_default) or _is_in(one, extend)]
    for entry in (*select, *extend, *ignore):
        if not any(_is_in(one, [entry]) for one in all_rules()):
            raise LintError(
                f"{quoted(entry)} names no rule; write a code (LH110), the beginning of one (LH11), a name or ALL"
            )
    return tuple(one for one in chosen if not _is_in(one, ignore))


def _is_in(one: Rule, entries: Sequence[str]) -> bool:
    return any(
        entry.upper() == "ALL" or entry.lower() == one.name or (len(entry) >= 2 and one.code.startswith(entry.upper()))
        for entry in entries
    )
