"""All names of an engine, as they were when last looked at: for people who watch, at a bounded cost to the engine.

Ten thousand names cannot be asked for each second. So each round looks at a bounded number of them (`Scout`): first
those that a person sees, then those whose lease should have ended, then the others in turn; and the `Roster` keeps what
was seen, lets its times run on, and tells what matters most. It never asks for more than the engine's listing and
the status of single names, so every engine that can be inspected can be watched.
"""

from __future__ import annotations

from leasehold.roster.book import Event, Roster, Row, Sample
from leasehold.roster.data import as_data
from leasehold.roster.scout import Findings, Scout
from leasehold.roster.views import ONLY, ORDERS, STATES, Only, Order, Page, State, Totals, View

__all__ = [
    "ONLY",
    "ORDERS",
    "STATES",
    "Event",
    "Findings",
    "Only",
    "Order",
    "Page",
    "Roster",
    "Row",
    "Sample",
    "Scout",
    "State",
    "Totals",
    "View",
    "as_data",
]
