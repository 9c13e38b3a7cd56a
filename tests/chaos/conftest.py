"""What the tests of faults strike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.chaos.fault_site import AlwaysAll, Line, a_site
from tests.support.server_process import memory_folder

from leasehold.chaos.servers import started
from leasehold.chaos.servers.process import OwnServer
from leasehold.chaos.site import Site
from leasehold.testing.proxy import Proxy


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    with a_site(folder) as site:
        yield site


@pytest.fixture
def wires(folder: Path) -> Iterator[Site]:
    """Redis and two proxies, and nobody at work."""
    with contextlib.ExitStack() as stack:
        url, servers = stack.enter_context(started("redis", folder))
        port = cast(OwnServer, servers[0]).port
        proxies = [stack.enter_context(Proxy("127.0.0.1", port)) for _ in range(2)]
        yield Site(url, 0.2, [], proxies, servers, AlwaysAll())


@pytest.fixture
def line() -> Iterator[Callable[[int], Line]]:
    with contextlib.ExitStack() as stack:

        def opened(port: int) -> Line:
            return stack.enter_context(contextlib.closing(Line(port)))

        yield opened
