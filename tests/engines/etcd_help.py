"""What the tests of the etcd engine share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.engines import driving

from leasehold.core.engine import Want
from leasehold.engines.etcd import EtcdFamily, open_engine
from leasehold.engines.etcd_sessions import Place
from leasehold.wires.etcd_lines import Line

if TYPE_CHECKING:
    import grpc
    from tests.support.etcd_server import EtcdNode


def family_at(url: str, *, namespace: str = "") -> EtcdFamily:
    return open_engine(url, namespace=namespace, client_label="tests")


class Driven(driving.Driven[EtcdFamily]):
    """An engine, and what its family knows."""

    def place(self, wanted: Want) -> Place:
        """What the family knows of an attempt."""
        place = self.family.sessions.known(wanted.holder)
        assert place is not None
        return place


class Counted:
    """Counts what a line's methods are called for, and passes it on."""

    def __init__(self, line: Line) -> None:
        self.made: list[str] = []
        self.sent: list[bytes] = []
        for method, call in line.calls.items():
            line.calls[method] = _Counting(call, method.rpartition("/")[2], self)  # type: ignore[assignment]


class _Counting:
    def __init__(self, call: grpc.UnaryUnaryMultiCallable[bytes, bytes], name: str, counted: Counted) -> None:
        self._call, self._name, self._counted = call, name, counted

    def _count(self, request: bytes) -> None:
        self._counted.made.append(self._name)
        self._counted.sent.append(request)

    def __call__(self, request: bytes, **settings: Any) -> bytes:
        self._count(request)
        return self._call(request, **settings)

    def future(self, request: bytes, **settings: Any) -> Any:
        self._count(request)
        return self._call.future(request, **settings)


def counted(family: EtcdFamily) -> Counted:
    """Count the requests of a family from now on."""
    return Counted(family._lines.current())


def keys_of(server: EtcdNode, name: str) -> list[str]:
    return [key for key in server.keys() if f"/{name}/" in key]  # noqa: SIM118
