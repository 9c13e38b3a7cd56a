"""Looking out for an answer: it is cheap where answers come soon, and next to nothing where they do not."""

from __future__ import annotations

import pytest

from leasehold.wires import lookout
from leasehold.wires.lookout import MOMENT, MOST_SKIPPED, SKIPPED_AFTER_WAIT, Lookout


class Server:
    """Something that has answered, or not; counts how often somebody looks."""

    def __init__(self, *, answers: bool) -> None:
        self.answers, self.looks = answers, 0

    def arrived(self, _timeout: int) -> bool:
        self.looks += 1
        return self.answers


class Clock:
    """Goes on by a quarter of a moment whenever somebody looks at it: a processor that others use does not matter."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += MOMENT / 4
        return self.now


monotonic = Clock()


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "processors", lambda: 2)
    monkeypatch.setattr(lookout, "monotonic", monotonic)


def skipped_before_next_look(looking: Lookout, server: Server) -> int:
    """How many requests go by until somebody looks again."""
    before = server.looks
    for skipped in range(MOST_SKIPPED + 1):
        looking.look(monotonic())
        if server.looks > before:
            return skipped
    raise AssertionError("nobody looks any more")


def test_one_look_suffices_when_the_answer_is_there() -> None:
    server = Server(answers=True)
    looking = Lookout(server.arrived)
    for _ in range(10):
        looking.look(monotonic())
    assert server.looks == 10


def test_it_gives_up_after_a_moment() -> None:
    server = Server(answers=False)
    began = monotonic()
    Lookout(server.arrived).look(began)
    assert monotonic() - began >= MOMENT
    assert server.looks > 1


def test_it_looks_for_as_long_as_it_is_told() -> None:
    server = Server(answers=False)
    began = monotonic()
    assert not Lookout(server.arrived, 50 * MOMENT).look(began)
    assert monotonic() - began >= 50 * MOMENT


def test_it_tells_whether_there_is_something_to_read() -> None:
    server = Server(answers=True)
    looking = Lookout(server.arrived, 5.0)
    assert looking.look(monotonic())
    looking.doze()
    assert not looking.look(monotonic()), "this time nobody looks"


def test_in_vain_it_looks_ever_more_seldom() -> None:
    server = Server(answers=False)
    looking = Lookout(server.arrived)
    assert [skipped_before_next_look(looking, server) for _ in range(9)] == [0, 1, 3, 7, 15, 31, 63, 127, 127]


def test_it_looks_each_time_again_once_an_answer_came_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(answers=False)
    looking = Lookout(server.arrived)
    assert [skipped_before_next_look(looking, server) for _ in range(3)] == [0, 1, 3]
    server.answers = True
    monkeypatch.setattr(lookout, "MOMENT", 5.0)  # or a busy machine may be slower than that
    assert [skipped_before_next_look(looking, server) for _ in range(3)] == [7, 0, 0]


def test_a_request_that_took_long_to_send_is_not_looked_for() -> None:
    """Other threads of the process are busy then: each look would let one of them run."""
    server = Server(answers=True)
    looking = Lookout(server.arrived)
    looking.look(monotonic() - MOMENT)
    assert server.looks == 0
    assert skipped_before_next_look(looking, server) == 1


def test_with_one_processor_it_lets_the_server_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "processors", lambda: 1)
    server = Server(answers=False)
    assert skipped_before_next_look(Lookout(server.arrived), server) == MOST_SKIPPED


def test_who_has_waited_for_a_turn_does_not_look_for_a_while() -> None:
    server = Server(answers=True)
    looking = Lookout(server.arrived)
    looking.doze()
    assert skipped_before_next_look(looking, server) == SKIPPED_AFTER_WAIT
