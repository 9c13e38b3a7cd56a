"""Our few messages: read back what etcd would say, and never take garbage for an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_messages import Deletion, Key, Malformed, Message, News

# As a server of version 3.4.23 sent them: the answer to a transaction that wrote a key and looked at it, and what a
# watch said when that key was deleted.
TXN_ANSWER = bytes.fromhex(
    "0a1a0887d5edba8fd59dc10410c0c0caafc1ba96892e18cbbb02200210011a0812060a0418cbbb02"
    "1a240a220a0418cbbb0212180a056b2f61303110cbbb0218cbbb0220012a017630c9d9042001"
)
WATCH_ANSWER = bytes.fromhex(
    "0a1a0887d5edba8fd59dc10410c0c0caafc1ba96892e18ccbb02200210055a0f0801120b0a056b2f61303118ccbb02"
)


def test_reads_what_a_server_said() -> None:
    outcome = messages.outcome_of(TXN_ANSWER)
    assert outcome == (40395, True, [[Key(b"k/a01", 40395, 77001, b"v", 40395)]])
    assert outcome.find(b"k/a01") == Key(b"k/a01", 40395, 77001, b"v", 40395)
    assert outcome.find(b"k/a") is None
    assert messages.news_of(WATCH_ANSWER) == News(
        5, 40396, created=False, cancelled=False, deleted=[Deletion(b"k/a01", 40396)]
    )


def test_numbers_of_64_bits_keep_their_sign() -> None:
    negative = b"\x10" + b"\xff" * 9 + b"\x01"
    assert Message(negative).number(2) == -1
    assert Message(b"\x10" + b"\xff" * 8 + b"\x7f").number(2) == 2**63 - 1


def test_unknown_fields_are_passed_over() -> None:
    known = messages._blob(2, b"key")
    unknown = b"\x79" + b"8 bytes!" + b"\x7d" + b"4 by" + messages._number(900, 7) + messages._blob(901, b"x")
    assert Message(unknown + known + unknown).blob(2) == b"key"


def test_every_cut_is_noticed_or_harmless() -> None:
    """A cut at the end of a field cannot be seen; then the answer lacks something, and that is noticed."""
    whole = _txn_answer(revision=9, keys=[Key(b"k", 9, 5, b"v")])
    assert messages.outcome_of(whole).found == [[Key(b"k", 9, 5, b"v")]]
    for end in range(len(whole)):
        try:
            outcome = messages.outcome_of(whole[:end])
        except Malformed:
            continue
        assert outcome.found == []


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_at_least_typed(data: bytes) -> None:
    for read in (messages.outcome_of, messages.keys_in, messages.deletion_of, messages.ttl_of_lease, messages.news_of):
        try:
            read(data)
        except Malformed:
            continue


@pytest.mark.parametrize("key", [Key(b"", 9, 5, b"v"), Key(b"k", 0, 5, b"v")])
def test_a_key_without_a_name_or_a_revision_is_refused(key: Key) -> None:
    with pytest.raises(Malformed):
        messages.outcome_of(_txn_answer(revision=9, keys=[key]))


def test_an_answer_without_a_revision_is_refused() -> None:
    with pytest.raises(Malformed, match="revision"):
        messages.outcome_of(_txn_answer(revision=0, keys=[]))


@given(st.integers(0, 2**63 - 1), st.binary(max_size=300))
def test_what_is_written_can_be_read(number: int, content: bytes) -> None:
    message = Message(messages._number(3, number) + messages._blob(70, content) + messages._blob(70, b"last"))
    assert message.number(3) == number
    assert message.blobs(70) == [content, b"last"]
    assert message.blob(70) == b"last"
    assert not message.has(71)


def _txn_answer(revision: int, keys: list[Key]) -> bytes:
    write, number = messages._blob, messages._number
    found = b"".join(
        write(2, write(1, key.key) + number(2, key.created) + write(5, key.value) + number(6, key.lease))
        for key in keys
    )
    return write(1, number(3, revision)) + number(2, 1) + write(3, write(1, found))
