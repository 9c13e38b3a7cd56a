"""What ZooKeeper does with the requests of its engine: a tree of nodes, transactions in one order, sessions, watches.

Messages come and go as the very bytes of its protocol. A real ensemble is driven with the same requests by a test, and
has to give the same answers. Time is passed in, so that the simulator's scheduler decides when a session is over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_errors import SESSION_EXPIRED, SESSION_MOVED
from leasehold.wires.zookeeper_messages import (
    BAD_VERSION,
    EPHEMERAL,
    EVENT,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OK,
    PONG,
    SEQUENTIAL,
    _buffer,
    _Reader,
    _text,
)

CREATE2, DELETE, EXISTS, GET_DATA, SET_DATA, SYNC = 15, 2, 3, 4, 5, 9
PING, GET_CHILDREN2, CHECK, MULTI, CREATE_CONTAINER, CLOSE = 11, 12, 13, 14, 19, -11
WRITES: Final = frozenset({CREATE2, DELETE, SET_DATA, MULTI, CREATE_CONTAINER, CLOSE})
_ROLLED_BACK, _CONNECTED, _DELETED, _CHANGED = -2, 3, 2, 3
_EPHEMERAL_PARENT: Final = -108
_BYTE: Final = struct.Struct(">?")
_CONNECT: Final = struct.Struct(">iqiq")


class Refused(Exception):
    """A change that is not carried out, and the number that says why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Node:
    """What is at a path."""

    data: bytes
    created: int
    changed: int
    owner: int = 0
    version: int = 0
    numbers: int = 0
    """How many children it ever had: the number of the next one."""
    children: dict[str, None] = field(default_factory=dict)

    def stat(self) -> bytes:
        """As the protocol shows it; what nobody here reads is 0."""
        return messages._STAT.pack(
            self.created, self.changed, 0, 0, self.version, 2 * self.numbers - len(self.children), 0, self.owner,
            len(self.data), len(self.children), 0,
        )  # fmt: skip


@dataclass(slots=True)
class Session:
    """A client, as the leader knows it."""

    timeout: float
    password: bytes
    expires: float
    connection: Connection | None = None
    nodes: dict[str, None] = field(default_factory=dict)


class Connection:
    """One connection of a client, as its server knows it."""

    def __init__(self, send: Callable[[bytes], object], hang_up: Callable[[], object]) -> None:
        self.send, self.hang_up = send, hang_up
        self.session = 0
        self.watches: dict[str, None] = {}
        self.touched: float | None = None
        """When its server last heard of it and has not told the leader."""


class ZooKeeper:
    """One ensemble, which is never of two minds."""

    def __init__(self, tick: float, *, zxid: int = 1) -> None:
        self.zxid, self._tick = zxid, tick
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0)}
        self.sessions: dict[int, Session] = {}
        self.connections: dict[Connection, None] = {}
        self._next_session = 0x100
        self._undo: list[Callable[[], object]] = []
        self._events: list[tuple[str, int]] = []

    # Sessions

    def connect(self, connection: Connection, message: bytes, now: float) -> None:
        """Begin a session, or go on with one."""
        reader = _Reader(message)
        _, _, asked, number = reader.unpack(_CONNECT)
        password = reader.buffer()
        session = self.sessions.get(number)
        if number == 0:
            self.zxid += 1
            self._next_session += 1
            number, timeout = self._next_session, min(max(asked / 1000, 2 * self._tick), 20 * self._tick)
            session = self.sessions[number] = Session(timeout, struct.pack(">qq", number, ~number), 0.0)
        elif session is None or session.password != password:
            connection.send(_buffer(struct.pack(">iiq", 0, 0, 0) + _buffer(bytes(16)) + b"\0"))
            connection.hang_up()
            return
        if session.connection is not None and session.connection is not connection:
            session.connection.hang_up()  # a request to connect that comes late may take it from one that is in use
            self._drop(session.connection)
        session.connection, connection.session = connection, number
        self.connections[connection] = None
        self._touch(session, now)
        answer = struct.pack(">iiq", 0, round(session.timeout * 1000), number) + _buffer(session.password) + b"\0"
        connection.send(_buffer(answer))

    def _touch(self, session: Session, now: float) -> None:
        """The leader keeps it for its timeout from now on, and up to the next of its ticks."""
        expires = now + session.timeout
        session.expires = max(session.expires, (expires // self._tick + 1) * self._tick)

    def tell_leader(self, now: float) -> None:
        """Servers tell the leader whom they have heard of."""
        for connection in self.connections:
            session = self.sessions.get(connection.session)
            if connection.touched is not None and session is not None:
                self._touch(session, min(connection.touched, now))
            connection.touched = None

    def new_leader(self, now: float) -> None:
        """A leader that was just elected starts the clock of every session anew."""
        for session in self.sessions.values():
            self._touch(session, now)

    def overdue(self, now: float) -> Iterator[int]:
        """Sessions whose time is over."""
        return iter([number for number, session in self.sessions.items() if session.expires <= now])

    def end(self, number: int) -> None:
        """End a session, and delete all that hangs on it in one transaction."""
        session = self.sessions.pop(number)
        self.zxid += 1
        for path in list(session.nodes):
            self._remove(path)
        self._settle()
        if session.connection is not None:
            session.connection.hang_up()
            self._drop(session.connection)

    def _drop(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        connection.watches.clear()

    def lost(self, connection: Connection) -> None:
        """A connection is gone; its session goes on."""
        session = self.sessions.get(connection.session)
        if session is not None and session.connection is connection:
            session.connection = None
        self._drop(connection)

    # Requests

    def ask(self, connection: Connection, message: bytes, now: float) -> None:
        """Carry out a request, and answer it."""
        number, kind = messages._REQUEST.unpack_from(message)
        body = message[messages._REQUEST.size :]
        session = self.sessions.get(connection.session)
        connection.touched = now
        if kind == PING:
            self._reply(connection, PONG, OK, b"")
        elif kind == CLOSE and session is not None:
            nodes, session.connection = connection, None
            self.end(connection.session)
            self._reply(nodes, number, OK, b"")
            nodes.hang_up()
        elif session is None:
            self._reply(connection, number, SESSION_EXPIRED, b"")
        elif session.connection is not connection:
            self._reply(connection, number, SESSION_MOVED, b"")
        elif kind in WRITES:
            self._write(connection, number, kind, body)
        else:
            self._reply(connection, number, *self._read(connection, kind, _Reader(body)))

    def _reply(self, connection: Connection, number: int, error: int, body: bytes) -> None:
        connection.send(_buffer(messages._REPLY.pack(number, self.zxid, error) + (body if error == OK else b"")))

    def _read(self, connection: Connection, kind: int, reader: _Reader) -> tuple[int, bytes]:
        path = reader.text()
        if kind == SYNC:
            return OK, _text(path)
        node = self.nodes.get(path)
        if node is None:
            return NO_NODE, b""
        if kind == EXISTS:
            return OK, node.stat()
        if kind == GET_CHILDREN2:
            names = b"".join(map(_text, node.children))
            return OK, messages._INT.pack(len(node.children)) + names + node.stat()
        if reader.unpack(_BYTE)[0]:
            connection.watches[path] = None
        return OK, _buffer(node.data) + node.stat()

    def _write(self, connection: Connection, number: int, kind: int, body: bytes) -> None:
        self.zxid += 1  # also what is refused has its number
        try:
            if kind == MULTI:
                answer = self._multi(connection.session, _Reader(body))
            else:
                answer = self._change(connection.session, kind, _Reader(body))
        except Refused as refused:
            self._settle()
            self._reply(connection, number, refused.code, b"")
            return
        self._settle()
        self._reply(connection, number, OK, answer)

    def _multi(self, session: int, reader: _Reader) -> bytes:
        answers, kinds, error, failed = b"", 0, OK, -1
        self._undo.clear()
        while True:
            kind, done, _ = reader.unpack(messages._PART)
            if done:
                break
            kinds += 1
            if error != OK:
                _skip(kind, reader)
                continue
            try:
                answer = self._change(session, kind, reader, in_multi=True)
                answers += messages._PART.pack(1 if kind == CREATE2 else kind, False, 0) + answer
            except Refused as refused:
                error, failed = refused.code, kinds - 1
        if error == OK:
            return answers + messages._PART.pack(-1, True, -1)
        while self._undo:
            self._undo.pop()()
        self._events.clear()
        codes = [OK if part < failed else error if part == failed else _ROLLED_BACK for part in range(kinds)]
        parts = b"".join(messages._PART.pack(-1, False, code) + messages._INT.pack(code) for code in codes)
        return parts + messages._PART.pack(-1, True, -1)

    def _change(self, session: int, kind: int, reader: _Reader, *, in_multi: bool = False) -> bytes:
        path = reader.text()
        if kind in (CREATE2, CREATE_CONTAINER):
            data = reader.buffer()
            _skip_permissions(reader)
            (flags,) = reader.unpack(messages._INT)
            path, node = self._create(session, path, data, flags if kind == CREATE2 else 0)
            return _text(path) if in_multi else _text(path) + node.stat()
        data = reader.buffer() if kind == SET_DATA else b""
        node_there = self.nodes.get(path)
        (version,) = reader.unpack(messages._INT)
        if node_there is None:
            raise Refused(NO_NODE)
        if version not in (-1, node_there.version):
            raise Refused(BAD_VERSION)
        if kind == SET_DATA:
            self._set(path, node_there, data)
            return node_there.stat()
        if kind == DELETE:
            if node_there.children:
                raise Refused(NOT_EMPTY)
            self._remove(path)
        return b""

    def _create(self, session: int, path: str, data: bytes, flags: int) -> tuple[str, Node]:
        folder = path.rpartition("/")[0] or "/"
        parent = self.nodes.get(folder)
        if parent is None:
            raise Refused(NO_NODE)
        if parent.owner:
            raise Refused(_EPHEMERAL_PARENT)
        if flags & SEQUENTIAL:
            path += f"{parent.numbers:010d}"
        if path in self.nodes:
            raise Refused(NODE_EXISTS)
        node = self.nodes[path] = Node(data, self.zxid, self.zxid, session if flags & EPHEMERAL else 0)
        name, before = path.rpartition("/")[2], parent.numbers
        parent.children[name] = None
        parent.numbers += 1
        if node.owner:
            self.sessions[session].nodes[path] = None

        def undo() -> None:
            self._take_away(path)
            parent.numbers = before

        self._undo.append(undo)
        return path, node

    def _set(self, path: str, node: Node, data: bytes) -> None:
        before = node.data, node.changed, node.version

        def undo() -> None:
            node.data, node.changed, node.version = before

        self._undo.append(undo)
        node.data, node.changed, node.version = data, self.zxid, node.version + 1
        self._events.append((path, _CHANGED))

    def _remove(self, path: str) -> None:
        node = self.nodes[path]
        folder, _, name = path.rpartition("/")

        def undo() -> None:
            self.nodes[path] = node
            self.nodes[folder or "/"].children[name] = None
            if node.owner in self.sessions:
                self.sessions[node.owner].nodes[path] = None

        self._undo.append(undo)
        self._take_away(path)
        self._events.append((path, _DELETED))

    def _take_away(self, path: str) -> None:
        node = self.nodes.pop(path)
        folder, _, name = path.rpartition("/")
        self.nodes[folder or "/"].children.pop(name)
        if node.owner in self.sessions:
            self.sessions[node.owner].nodes.pop(path, None)

    def _settle(self) -> None:
        """Tell those who watch what has happened, once each, before any answer that follows."""
        events, self._events = self._events, []
        self._undo.clear()
        for path, kind in events:
            for connection in list(self.connections):
                if path in connection.watches:
                    del connection.watches[path]
                    body = messages._EVENT.pack(kind, _CONNECTED) + _text(path)
                    connection.send(_buffer(messages._REPLY.pack(EVENT, -1, OK) + body))


def _skip_permissions(reader: _Reader) -> None:
    (number,) = reader.unpack(messages._INT)
    for _ in range(number):
        reader.unpack(messages._INT)
        reader.text()
        reader.text()


def _skip(kind: int, reader: _Reader) -> None:
    reader.text()
    if kind in (CREATE2, SET_DATA, CREATE_CONTAINER):
        reader.buffer()
    if kind in (CREATE2, CREATE_CONTAINER):
        _skip_permissions(reader)
    reader.unpack(messages._INT)
