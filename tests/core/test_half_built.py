"""A client that could not be opened is shown by debuggers and error reports all the same."""

from __future__ import annotations

from traceback import TracebackException

import pytest

from leasehold import AsyncLeasehold, InvalidURL, Leasehold


@pytest.mark.parametrize("kind", [Leasehold, AsyncLeasehold])
def test_a_traceback_with_local_variables_shows_a_client_that_was_not_opened(
    kind: type[Leasehold | AsyncLeasehold],
) -> None:
    with pytest.raises(InvalidURL) as caught:
        kind("nothing://at-all")
    trace = TracebackException.from_exception(caught.value, capture_locals=True)
    assert f"self = <{kind.__name__}, not opened>" in "".join(trace.format())
