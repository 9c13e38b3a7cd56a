"""A proxy on the loopback that counts round trips."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.fences.losing_proxy import LosingProxy

_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER, _HEADERS = 9, 1


class CountingProxy(LosingProxy):
    """Counts how often the client speaks after the server has spoken, whatever they say.

    In HTTP/2 both sides also speak of their connection at any time; there it counts requests.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._lock = threading.Lock()
        self._count, self._client_spoke_last = 0, False
        self._frames: bytes | None = None
        """What is left of the last frame, where the client speaks HTTP/2."""

    def passes(self, data: bytes, *, from_client: bool) -> None:
        """Count it."""
        with self._lock:
            if from_client and data.startswith(_HTTP2):
                self._frames, data = b"", data.removeprefix(_HTTP2)
            if self._frames is not None:
                self._count += self._requests_in(data) if from_client else 0
                return
            self._count += from_client and not self._client_spoke_last
            self._client_spoke_last = from_client

    def _requests_in(self, data: bytes) -> int:
        rest, count = (self._frames or b"") + data, 0
        while len(rest) >= _FRAME_HEADER:
            whole = _FRAME_HEADER + int.from_bytes(rest[:3])
            if len(rest) < whole:
                break
            count += rest[3] == _HEADERS
            rest = rest[whole:]
        self._frames = rest
        return count

    def round_trips_of(self, deed: Callable[[], object]) -> int:
        """How many a deed takes."""
        with self._lock:
            before = self._count
        deed()
        with self._lock:
            return self._count - before
