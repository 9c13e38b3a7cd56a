"""Signed tokens, for writers that are not trusted.

A token is a number that anybody can make up. Where whoever writes is not to choose it, somebody who is trusted (the
program that holds the lease) signs it for one resource, and the resource takes nothing else:

>>> signer = TokenSigner(b"a key of thirty-two bytes or more")
>>> signed = signer.sign("account/42", 34)
>>> signer.verify("account/42", str(signed))
34
>>> signer.verify("account/43", str(signed))
Traceback (most recent call last):
    ...
leasehold.errors.InvalidToken: the signature of this token does not fit 'account/43'; ask the lease's holder for one
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from leasehold.errors import InvalidToken, Misuse, quoted
from leasehold.fences.rule import HasToken, token_of
from leasehold.names import check_name, check_token

LEAST_KEY = 32
"""In bytes: as long as the signature is."""
_SHAPE = re.compile(r"(0|[1-9][0-9]{0,18})\.([0-9a-f]{64})", re.ASCII)
_PURPOSE = b"leasehold fencing token 1"


class SignedToken:
    """A token with its signature. Its text is what is sent; it is no secret, but whoever has it may use it."""

    __slots__ = ("_text", "token")

    def __init__(self, token: int, text: str) -> None:
        self.token, self._text = token, text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<SignedToken {self.token}>"


class TokenSigner:
    """Signs tokens and checks signatures, by HMAC-SHA256 with keys that both sides know."""

    def __init__(self, key: bytes, *, older_keys: Sequence[bytes] = ()) -> None:
        """`key` signs; `older_keys` are accepted too, so that keys can be changed without a gap."""
        self._keys = (key, *older_keys)
        if any(type(one) is not bytes or len(one) < LEAST_KEY for one in self._keys):
            raise Misuse(f"a key must be at least {LEAST_KEY} random bytes, such as secrets.token_bytes({LEAST_KEY})")

    def sign(self, resource: str, token: int | HasToken) -> SignedToken:
        """Sign a token for one resource."""
        number = token_of(token)
        return SignedToken(number, f"{number}.{_signature(self._keys[0], resource, number)}")

    def verify(self, resource: str, text: str) -> int:
        """Return the token, or raise `InvalidToken`. Then give it to the fence, as any other token."""
        shape = _SHAPE.fullmatch(text) if type(text) is str else None
        if shape is None:
            raise InvalidToken(f"this is no signed token: {quoted(text)}")
        number = check_token(int(shape[1]))
        # All keys are tried in any case: how long it takes tells nothing.
        fits = [hmac.compare_digest(_signature(key, resource, number), shape[2]) for key in self._keys]
        if not any(fits):
            raise InvalidToken(
                f"the signature of this token does not fit {quoted(resource)}; ask the lease's holder for one"
            )
        return number

    def __repr__(self) -> str:
        return f"<TokenSigner with {len(self._keys)} keys>"


def _signature(key: bytes, resource: str, token: int) -> str:
    name = check_name(resource, what="resource").encode()
    said = b"\0".join((_PURPOSE, str(token).encode(), name))  # neither part can hold the separator
    return hmac.new(key, said, hashlib.sha256).hexdigest()
