"""Our few messages: read back what ZooKeeper would say, and never take garbage for an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_messages import Malformed, Reply, Stat

# As a server of version 3.8.0 sent them: a node that was created, one that was looked at; a transaction whose first
# part was refused, so that the second was rolled back; one that set a node and deleted another.
CREATED = bytes.fromhex(
    "0000000f2f612f652d30303030303030303030000000000000000300000000000000030000"
    "01a1e1c23b54000001a1e1c23b5400000000000000000000000001000"
    "0c58e3e0000000000020000000000000000000000" + "03"
)
REFUSED_MULTI = bytes.fromhex("ffffffff00ffffff9bffffff9bffffffff00fffffffefffffffeffffffff01ffffffff")
DELETED_AND_CREATED = bytes.fromhex("000000020000000000000000010000000000000000042f612f78ffffffff01ffffffff")


def test_reads_what_a_server_said() -> None:
    path, stat = messages.created_in(CREATED)
    assert path == "/a/e-0000000000"
    assert stat == Stat(created=3, changed=3, owner=0x10000C58E3E0000, version=0, children=0, turnover=0)
    assert messages.error_of_multi(Reply(0, 7, REFUSED_MULTI)) == messages.NO_NODE
    assert messages.error_of_multi(Reply(0, 7, DELETED_AND_CREATED)) == messages.OK
    assert messages.error_of_multi(Reply(messages.NO_NODE, 7, b"")) == messages.NO_NODE


def test_a_message_is_taken_only_when_it_is_whole() -> None:
    whole = messages.framed(7, messages.exists("/a"))
    received = bytearray()
    for number, byte in enumerate(whole + whole, 1):
        received.append(byte)
        message = messages.frame_in(received, 100)
        assert (message is not None) == (number in (len(whole), 2 * len(whole)))
    assert received == b""


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x65"])
def test_an_impossible_length_is_refused(length: bytes) -> None:
    with pytest.raises(Malformed):
        messages.frame_in(bytearray(length + b"x" * 200), 100)


READERS: tuple[Callable[[bytes], object], ...] = (
    messages.created_in, messages.stat_in, messages.data_in, messages.children_in, messages.parent_in,
    messages.event_in, messages.connected_in, messages.reply_in, messages.changed_in_multi, messages.created_in_multi,
    lambda body: messages.error_of_multi(Reply(0, 0, body)),
)  # fmt: skip


@given(st.binary(max_size=200), st.sampled_from(READERS))
def test_garbage_is_malformed_or_read_and_nothing_else(body: bytes, read: Callable[[bytes], object]) -> None:
    try:
        read(body)
    except Malformed:
        return


@given(st.integers(0, len(CREATED) - 1))
def test_what_was_cut_off_is_malformed(length: int) -> None:
    with pytest.raises(Malformed):
        messages.created_in(CREATED[:length])
