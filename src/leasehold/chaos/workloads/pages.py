"""A list that is read and written back with one element more, in pages: as a whole it would grow too large."""

from __future__ import annotations

from typing import Any, Final

from leasehold.chaos.resource import Cells

ON_A_PAGE: Final = 50


def read(cells: Cells, name: str) -> dict[str, Any]:
    """How long the list is, its last element, and the page that is being filled."""
    end = cells.get(f"{name}/end", {"size": 0, "last": None})
    return {**end, "page": cells.get(_page(name, end["size"]), [])}


def append(cells: Cells, name: str, seen: dict[str, Any], element: str) -> None:
    """Write back what `read` gave, with one element more."""
    cells.put(_page(name, seen["size"]), [*seen["page"], element])
    cells.put(f"{name}/end", {"size": seen["size"] + 1, "last": element})


def everything(cells: Cells, name: str) -> list[str]:
    """All elements that are there."""
    return [element for page in cells.below(f"{name}/page/").values() for element in page]


def _page(name: str, size: int) -> str:
    return f"{name}/page/{size // ON_A_PAGE:09}"
