"""What every test can rely on, however the suite was started."""

from __future__ import annotations

import os
import signal

import pytest
from tests.support.stalls import stalls_are_no_failures

import servers

# Where the servers are that were unpacked for the tests, in the words of those who start servers of their own.
os.environ.setdefault("LEASEHOLD_SERVERS", str(servers.CACHE))

# Started in the background or under nohup, a process inherits that these are ignored, and would hand that on to every
# child; the tests about Ctrl-C and hang-ups need them as a terminal gives them.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    stalls_are_no_failures(config)
