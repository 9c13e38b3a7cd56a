"""Being let in by MySQL and MariaDB: what a server says first, and how one proves who one is. Nothing here does I/O."""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from leasehold.wires.mysql_packets import LARGEST_PACKET, Nonsense, error_in

UTF8MB4: Final = 45
LONG_PASSWORD, CONNECT_WITH_DB, PROTOCOL_41, SSL = 0x1, 0x8, 0x200, 0x800
TRANSACTIONS, SECURE_CONNECTION, MULTI_STATEMENTS, MULTI_RESULTS = 0x2000, 0x8000, 0x10000, 0x20000
PLUGIN_AUTH, CONNECT_ATTRIBUTES = 0x80000, 0x100000
_ALWAYS: Final = (
    LONG_PASSWORD | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | MULTI_STATEMENTS | MULTI_RESULTS | PLUGIN_AUTH
)


class Greeting(NamedTuple):
    """What a server says first."""

    version: str
    can_tls: bool
    plugin: str
    salt: bytes


def greeting(packet: bytes) -> Greeting:
    """Understand the first packet of a connection; raises `SqlError` when it is a refusal."""
    if packet[:1] == b"\xff":
        raise error_in(packet)
    end = packet.find(b"\0", 1)
    if packet[:1] != b"\x0a" or end < 0 or len(packet) < end + 32:
        raise Nonsense("a greeting of another protocol")
    at = end + 5
    abilities = int.from_bytes(packet[at + 9 : at + 11], "little") | (
        int.from_bytes(packet[at + 14 : at + 16], "little") << 16
    )
    needed = PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH | MULTI_STATEMENTS
    if abilities & needed != needed:
        raise Nonsense("a greeting of a server that is too old")
    rest = max(13, packet[at + 16] - 8)
    salt = packet[at : at + 8] + packet[at + 27 : at + 27 + rest].rstrip(b"\0")
    plugin = packet[at + 27 + rest :].partition(b"\0")[0]
    return Greeting(
        packet[1:end].decode("ascii", "replace"), bool(abilities & SSL), plugin.decode("ascii", "replace"), salt
    )


def tls_request() -> bytes:
    """Asks to go on in TLS."""
    return struct.pack("<IIB23x", _ALWAYS | CONNECT_WITH_DB | CONNECT_ATTRIBUTES | SSL, LARGEST_PACKET, UTF8MB4)


def login(user: str, database: str, plugin: str, proof: bytes, program: str, *, tls: bool) -> bytes:
    """Says who one is, and proves it."""
    abilities = _ALWAYS | CONNECT_WITH_DB | CONNECT_ATTRIBUTES | (SSL if tls else 0)
    attributes = _text(b"program_name") + _text(program.encode())
    return b"".join(
        (
            struct.pack("<IIB23x", abilities, LARGEST_PACKET, UTF8MB4),
            user.encode() + b"\0",
            bytes((len(proof),)) + proof,
            database.encode() + b"\0",
            plugin.encode() + b"\0",
            _text(attributes),
        )
    )


def _text(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def native_proof(password: bytes, salt: bytes) -> bytes:
    """For mysql_native_password."""
    if not password:
        return b""
    once = hashlib.sha1(password, usedforsecurity=False).digest()
    twice = hashlib.sha1(once, usedforsecurity=False).digest()
    return _mixed(once, hashlib.sha1(salt[:20] + twice, usedforsecurity=False).digest())


def caching_proof(password: bytes, salt: bytes) -> bytes:
    """For caching_sha2_password, where the server remembers the user."""
    if not password:
        return b""
    once = hashlib.sha256(password).digest()
    twice = hashlib.sha256(once).digest()
    return _mixed(once, hashlib.sha256(twice + salt[:20]).digest())


def _mixed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
