"""Signed tokens: nobody but who has the key can make one, and it is good for one resource."""

from __future__ import annotations

import secrets
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fences.test_http import RESOURCE, URL, Accounts, accounts, path, wsgi_app

from leasehold.errors import InvalidName, InvalidToken, Misuse
from leasehold.fences import TokenSigner
from leasehold.fences.http import WsgiFence, carrying, send_token

__all__ = ["accounts", "path"]  # fixtures

KEY, OTHER = secrets.token_bytes(32), secrets.token_bytes(32)
names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20).filter(str.strip)


@given(names, st.integers(0, 2**63 - 1))
def test_what_was_signed_is_read_back(resource: str, token: int) -> None:
    signer = TokenSigner(KEY)
    assert signer.verify(resource, str(signer.sign(resource, token))) == token


@given(names, st.integers(0, 2**63 - 1), st.data())
def test_nothing_that_was_changed_is_taken(resource: str, token: int, data: st.DataObject) -> None:
    text = str(TokenSigner(KEY).sign(resource, token))
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from("0123456789abcdef.")) + text[place + 1 :]
    if changed != text:
        with pytest.raises(InvalidToken):
            TokenSigner(KEY).verify(resource, changed)


def test_it_is_for_one_resource_and_one_key() -> None:
    signer = TokenSigner(KEY)
    text = str(signer.sign("account/42", 34))
    for resource in ("account/4", "account/421", "Account/42"):
        with pytest.raises(InvalidToken, match="does not fit"):
            signer.verify(resource, text)
    with pytest.raises(InvalidToken, match="does not fit"):
        TokenSigner(OTHER).verify("account/42", text)
    assert TokenSigner(OTHER, older_keys=[KEY]).verify("account/42", text) == 34
    with pytest.raises(InvalidToken, match="does not fit"):
        signer.verify("account/42", str(TokenSigner(OTHER, older_keys=[KEY]).sign("account/42", 34)))


@pytest.mark.parametrize("text", ["", "34", "34.", "34.x", "34." + "0" * 63, "34." + "0" * 65, "034." + "0" * 64, None])
def test_what_is_no_signed_token_is_said_so(text: Any) -> None:
    with pytest.raises(InvalidToken, match="no signed token"):
        TokenSigner(KEY).verify("account/42", text)


def test_keys_are_long_and_never_shown() -> None:
    for key in (b"", b"x" * 31, "x" * 32, None):
        with pytest.raises(Misuse, match="at least 32"):
            TokenSigner(key)  # type: ignore[arg-type]
    key = b"a canary of more than 32 bytes, 7Qx"
    signer = TokenSigner(key)
    assert "canary" not in repr(signer) + repr(signer.sign("a", 1)) + str(signer.sign("a", 1))
    with pytest.raises(InvalidName):
        signer.sign("a\0b", 1)


def test_a_service_takes_signed_tokens_only(accounts: Accounts) -> None:
    signer = TokenSigner(KEY)
    app = WsgiFence(wsgi_app(accounts), accounts.writing, signer=signer)
    with httpx.Client(transport=httpx.WSGITransport(app), auth=send_token) as client:
        with carrying(2**62):
            assert client.put(URL, content="by a stranger").status_code == 400
        with carrying(signer.sign("/accounts/43", 34)):
            assert client.put(URL, content="for another").status_code == 400
        with carrying(signer.sign(RESOURCE, 34)):
            assert client.put(URL, content="mine").status_code == 200
        with carrying(signer.sign(RESOURCE, 33)):
            assert client.put(URL, content="stale").status_code == 412
    assert (accounts.get(RESOURCE), accounts.floor(RESOURCE)) == ("mine", 34)
