"""One connection to a Consul agent."""

from __future__ import annotations

from time import monotonic

from leasehold.errors import EngineError
from leasehold.wires import http
from leasehold.wires.consul_address import Address
from leasehold.wires.consul_errors import nonsense, unanswered, unreachable
from leasehold.wires.http_stream import Stream, dial
from leasehold.wires.sockets import Sockets
from leasehold.wires.urls import Endpoint, Hidden


class Line:
    """Carries one request at a time; what leaves an answer unread closes it."""

    def __init__(self, stream: Stream, endpoint: Endpoint, address: Address) -> None:
        self.endpoint = endpoint
        self._stream, self._answers, self._open = stream, http.Answers(), True
        self._address = f"consul at {endpoint}"
        token = {} if address.token is None else {"X-Consul-Token": address.token}
        self._headers = Hidden(http.headers_of({"Host": str(endpoint), **token}))

    async def ask(
        self, method: str, target: str, body: bytes, until: float, *, changes: bool, soon: bool = True
    ) -> http.Answer:
        """Send one request and return its answer, whatever its code.

        `changes`: it is more than a question. `soon`: it is answered at once, not when something happens.
        """
        message = http.request(method, target, self._headers, body)
        try:
            began, answer = monotonic(), None
            await self._stream.write(message, until)
            if soon:
                self._stream.look_out(began)
            while answer is None:
                data = await self._stream.read(until)
                if not data:
                    raise ConnectionError
                answer = self._answers.feed(data)
        except OSError as error:
            raise self._failure(changes=changes, broke=not isinstance(error, TimeoutError)) from None
        except http.Malformed as error:
            self.close()
            raise nonsense(self._address, f"{error}; is there an agent of Consul at this address?") from None
        except BaseException:
            self.close()
            raise
        if not answer.stays_open:
            self.close()
        return answer

    def _failure(self, *, changes: bool, broke: bool) -> EngineError:
        self.close()
        return unanswered(self._address, changes=changes, broke=broke)

    def is_usable(self) -> bool:
        """Whether an idle line can carry a request: it is open, and the agent has not hung up."""
        return self._open and self._stream.is_quiet()

    def close(self) -> None:
        """Close the connection."""
        self._open = False
        self._stream.close()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection."""
        self.close()


class Dialling:
    """Which of the endpoints is used: one until it fails, then the next."""

    def __init__(self, address: Address, sockets: Sockets) -> None:
        self._address, self._sockets, self._at = address, sockets, 0

    async def connect(self, until: float) -> Line:
        """A connection to the endpoint in use, or to the next that can be reached; raises `EngineUnavailable`."""
        endpoints, world = self._address.endpoints, self._sockets.world
        failure: EngineError | None = None
        for position in range(len(endpoints)):
            endpoint = self.current
            share = (until - world.now()) / (len(endpoints) - position)
            try:
                stream = await dial(endpoint, self._address.tls, self._sockets, world.now() + share)
                return Line(stream, endpoint, self._address)
            except OSError as error:
                failure = unreachable(f"consul at {endpoint}", error)
                self.move_on(endpoint)
        assert failure is not None
        raise failure

    @property
    def current(self) -> Endpoint:
        """The endpoint in use."""
        return self._address.endpoints[self._at]

    def move_on(self, failed: Endpoint) -> None:
        """Let the following connections go to the next endpoint."""
        if self.current == failed:
            self._at = (self._at + 1) % len(self._address.endpoints)
