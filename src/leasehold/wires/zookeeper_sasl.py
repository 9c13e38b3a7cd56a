"""Logging in to ZooKeeper by SASL, with its mechanism DIGEST-MD5 (RFC 2831): who one is, without sending the password.

The server sends a challenge, the client proves that it knows the password, and the server proves the same of itself.
The hash is a weak one, and the one that ZooKeeper speaks: on a network that others can listen to, use TLS as well.

>>> exchange = Exchange(Hidden("worker:secret"))
>>> b'digest-uri="zookeeper/zk-sasl-md5"' in exchange.answer(b'realm="zk",nonce="n",qop="auth",algorithm=md5-sess')
True
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

from leasehold.wires.urls import Hidden
from leasehold.wires.zookeeper_messages import Malformed

_ADDRESSEE: Final = "zookeeper/zk-sasl-md5"
"""The service and the name that every ZooKeeper server goes by here, whatever its host."""
_FIRST: Final = "00000001"
_FIELD: Final = re.compile(rb'\s*([a-zA-Z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|$)', re.DOTALL)


class Exchange:
    """One log-in: a challenge is answered, and what comes back for that is checked."""

    def __init__(self, login: Hidden, *, own_nonce: str | None = None) -> None:
        """As ``user:password``."""
        self._login = login
        self._own_nonce = own_nonce or secrets.token_urlsafe(18)
        self._expected = Hidden()

    def answer(self, challenge: bytes) -> bytes:
        """Prove that we know the password; raises `Malformed` if that is not what the server asks for."""
        asked = _fields(challenge)
        nonce, realm = asked.get("nonce"), asked.get("realm", "")
        if nonce is None or asked.get("algorithm") != "md5-sess" or "auth" not in asked.get("qop", "auth").split(","):
            raise Malformed("it does not ask for a proof by DIGEST-MD5")
        user, _, password = map(Hidden, str.partition(self._login, ":"))
        secret = _hash(_hashed_as(user), _hashed_as(realm), _hashed_as(password)).digest()
        key = Hidden(_hash(secret, nonce.encode(), self._own_nonce.encode()).hexdigest())
        self._expected = Hidden(self._proof(key, nonce, ""))
        words = {
            "username": _quoted(user),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "cnonce": _quoted(self._own_nonce),
            "nc": _FIRST,
            "qop": "auth",
            "digest-uri": _quoted(_ADDRESSEE),
            "response": self._proof(key, nonce, "AUTHENTICATE"),
            "charset": "utf-8",
        }
        return ",".join(f"{name}={value}" for name, value in words.items()).encode()

    def accepts(self, proof: bytes) -> bool:
        """Whether the server knows the password too."""
        given = _fields(proof).get("rspauth", "")
        return bool(self._expected) and hmac.compare_digest(given.encode(), self._expected.encode())

    def _proof(self, key: Hidden, nonce: str, role: str) -> str:
        addressee = _hash(role.encode(), _ADDRESSEE.encode()).hexdigest()
        words = (key, nonce, _FIRST, self._own_nonce, "auth", addressee)
        return _hash(*(word.encode() for word in words)).hexdigest()


def _hash(*parts: bytes) -> hashlib._Hash:
    return hashlib.md5(b":".join(parts), usedforsecurity=False)


def _hashed_as(text: str) -> bytes:
    """The mechanism hashes a text as Latin-1 where that can be, and as UTF-8 where not."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _fields(content: bytes) -> dict[str, str]:
    found, at = dict[str, str](), 0
    while at < len(content):
        match = _FIELD.match(content, at)
        if match is None:
            raise Malformed("it has words of SASL that cannot be read")
        name, quoted, plain = match.groups()
        try:
            value = plain.decode() if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL).decode()
        except UnicodeDecodeError:
            raise Malformed("a text in it is not UTF-8") from None
        found[name.decode().lower()] = value
        at = match.end()
    return found
