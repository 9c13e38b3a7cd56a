"""The check of a fencing token refuses too much, or compares text.

## Why

The resource must refuse a token that is lower than the highest it has seen, and nothing else. With `<=` it refuses
the second write of its rightful holder; with `==` or `!=` it lets in only one, or every old one. And as text, "9" is
above "10".

## Bad

```py
def write(row, token, value):
    if token <= row.highest_token:
        raise StaleToken(token)
    row.highest_token = token
    row.value = value
```

```py
def write(row, token, value):
    if str(token) < str(row.highest_token):
        raise StaleToken(token)
    row.highest_token = token
```

## Good

```py
def write(row, token, value):
    if token < row.highest_token:
        raise StaleToken(token)
    row.highest_token = token
    row.value = value
```

## Not reported

Comparisons whose names do not speak of a token on both sides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, method_of
from leasehold.lint.rule import rule
from leasehold.lint.words import speaks_of

SEEN = ("seen", "highest", "latest", "newest", "greatest")
FENCED = ("fence", "fencing", "fenced")


@rule("LH180", "fence-compare", __doc__, words=("token", "fenc"))
def check(module: Module) -> Iterator[Finding]:
    """Report the comparison."""
    for compare in module.all(ast.Compare):
        if len(compare.ops) != 1 or not _is_fence(module, compare):
            continue
        sides = [compare.left, compare.comparators[0]]
        if isinstance(compare.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE) and any(_is_text(side) for side in sides):
            yield module.finding("LH180", compare, 'as text "9" is above "10": compare tokens as integers')
        elif _refuses_own(module, compare):
            yield module.finding(
                "LH180", compare, "this refuses the holder's second write: refuse only a token that is lower (<)"
            )


def _is_fence(module: Module, compare: ast.Compare) -> bool:
    left, right = module.text(compare.left), module.text(compare.comparators[0])
    both = speaks_of(left, "token") and speaks_of(right, "token")
    return (both and (speaks_of(left, *SEEN) or speaks_of(right, *SEEN))) or (
        (both or speaks_of(left + right, *SEEN)) and speaks_of(left + right, *FENCED)
    )


def _is_text(side: ast.expr) -> bool:
    return isinstance(side, ast.Call) and method_of(side) == "str"


def _refuses_own(module: Module, compare: ast.Compare) -> bool:
    """``if token <= seen: raise``, also written the other way round."""
    branch = module.parents.get(compare)
    if not isinstance(branch, ast.If) or not isinstance(branch.body[-1], ast.Raise):
        return False
    seen_left = speaks_of(module.text(compare.left), *SEEN)
    return isinstance(compare.ops[0], ast.GtE if seen_left else ast.LtE)
