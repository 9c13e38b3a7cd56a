"""Kafka says who is to own a partition; our lease says with which token, and keeps two owners apart.

The broker is librdkafka's own mock cluster, which speaks the protocol over sockets and rebalances groups. It does not
fence the commits of replaced consumers, as a real broker does.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from leasehold import Leasehold, Misuse
from leasehold.patterns.partitions.kafka import KafkaPartitions

pytestmark = pytest.mark.nightly

TOPIC = "orders"
MESSAGES = 48
PATIENT = 60.0


@pytest.fixture
def brokers() -> Iterator[str]:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 3})
    broker = next(iter(producer.list_topics(timeout=PATIENT).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    producer.flush(PATIENT)


class Member(threading.Thread):
    """A consumer that notes what it handles, until it is told to stop."""

    def __init__(self, path: Path, brokers: str, log: list[tuple[str, int, int, int]]) -> None:
        super().__init__()
        self.until, self.log, self.path = threading.Event(), log, path
        self.handled = 0
        self.settings = {
            "bootstrap.servers": brokers,
            "group.id": "billing",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 100,
        }
        self.owned: dict[tuple[str, int], int] = {}

    def run(self) -> None:
        with Leasehold(self.path) as locks:
            partitions = KafkaPartitions(locks, Consumer(self.settings), "billing", ttl=20)
            partitions.subscribe([TOPIC])
            for writer, message in partitions.messages(self.until):
                writer.check()
                self.log.append((writer.entity, int(message.value()), writer.partition, writer.token))
                self.handled += 1
                self.owned = partitions.owned
            partitions.close()


def wait_for(member: Member, count: int) -> None:
    give_up_at = time.monotonic() + PATIENT
    while member.handled < count:
        assert time.monotonic() < give_up_at, f"{member.handled} messages were handled"
        time.sleep(0.05)


def test_ownership_follows_rebalances_with_rising_tokens_and_nothing_is_lost(tmp_path: Path, brokers: str) -> None:
    log: list[tuple[str, int, int, int]] = []
    producer = Producer({"bootstrap.servers": brokers})
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            producer.produce(TOPIC, key=f"customer-{number % 8}", value=str(number))
        sent += count
        producer.flush(PATIENT)

    send(MESSAGES)
    first = Member(tmp_path / "leases.db", brokers, log)
    first.start()
    wait_for(first, MESSAGES)
    second = Member(tmp_path / "leases.db", brokers, log)
    second.start()
    give_up_at = time.monotonic() + PATIENT
    while not second.handled:  # the rebalance takes its time
        assert time.monotonic() < give_up_at
        send(8)
        time.sleep(0.2)
    first.until.set()
    first.join(PATIENT)
    before = second.handled
    send(MESSAGES)
    wait_for(second, before + MESSAGES // 2)
    give_up_at = time.monotonic() + PATIENT
    while len({number for _, number, _, _ in log}) < sent:
        assert time.monotonic() < give_up_at, "something was lost"
        time.sleep(0.1)
    second.until.set()
    second.join(PATIENT)
    tokens: dict[int, list[int]] = defaultdict(list)
    numbers: dict[str, list[int]] = defaultdict(list)
    for entity, number, partition, token in log:
        tokens[partition].append(token)
        if number not in numbers[entity]:  # at least once
            numbers[entity].append(number)
    assert all(seen == sorted(seen) for seen in tokens.values()), "a write with an older token after a newer one"
    assert any(len(set(seen)) > 1 for seen in tokens.values()), "no partition has changed hands"
    assert all(seen == sorted(seen) for seen in numbers.values()), "the order of a key was not kept"


def test_tokens_rise_also_when_nobody_was_there_for_a_while(tmp_path: Path, brokers: str) -> None:
    """Our tokens are kept by the engine: a group that begins anew goes on above those of all before."""
    log: list[tuple[str, int, int, int]] = []
    producer = Producer({"bootstrap.servers": brokers})
    highest: dict[int, int] = {}
    for _ in range(2):
        for number in range(MESSAGES):
            producer.produce(TOPIC, key=f"customer-{number % 8}", value=str(number))
        producer.flush(PATIENT)
        only = Member(tmp_path / "leases.db", brokers, log)
        only.start()
        wait_for(only, MESSAGES)
        only.until.set()
        only.join(PATIENT)
        tokens = {partition: token for _, _, partition, token in log}
        assert all(tokens[partition] > token for partition, token in highest.items())
        highest, log[:] = tokens, []
    assert highest


def test_what_is_no_consumer_is_refused(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks, pytest.raises(Misuse, match=r"confluent_kafka\.Consumer"):
        KafkaPartitions(locks, object(), "billing")
