"""Bugs that a lock on etcd can have, planted in the etcd engine."""

from __future__ import annotations

from leasehold.engines import etcd, etcd_requests, etcd_sessions, etcd_taking
from leasehold.sim.mutating import Edit, Mutation, edit, registrar

ETCD_MUTATIONS: dict[str, Mutation] = {}
_caught_by = registrar(ETCD_MUTATIONS)


@_caught_by("exclusion", "told", "given")
def woken_is_enough() -> list[Edit]:
    """Who is woken writes its key and believes, without looking whether its session, and so its key, still lives."""
    return [
        edit(
            etcd_taking.Taking._claim,
            ("conditions.append(messages.if_modified(place.key, place.modified))", ""),
            ("hang = attempt.hang(place.home)", "hang, conditions = attempt.put(place.home), []"),
        )
    ]


@_caught_by("exclusion", "told", "given")
def unseen_is_free() -> list[Edit]:
    """A waiter whose look at the queue got no answer takes it that nobody is before it."""
    return [edit(etcd_taking.Taking._note_written, ("place.blockade = UNSEEN", ""))]


@_caught_by("exclusion", "told")
def claim_without_looking_before() -> list[Edit]:
    """Whose watch ended takes the name if its own key is there, whoever is before it."""
    return [
        edit(
            etcd_taking.Taking._claim,
            ("conditions = [messages.if_none_created_before(*attempt.span, token)]", "conditions = []"),
        )
    ]


@_caught_by("given")
def token_of_another_key() -> list[Edit]:
    """The token is the revision of the key that was in the way, not of one's own."""
    return [
        edit(
            etcd_taking.Taking._claim,
            (
                "return Grant(token, since=place.home.confirmed_at)",
                "return Grant(place.incumbent.created if place.incumbent else token, since=place.home.confirmed_at)",
            ),
        )
    ]


@_caught_by("exclusion", "told")
def lease_counted_from_the_take() -> list[Edit]:
    """A lease on a session that is older than the request is believed in for a whole TTL from the request on."""
    return [
        edit(
            etcd_taking.Taking._try,
            ("return Grant(place.token, since=place.home.confirmed_at)", "return Grant(place.token)"),
        ),
        edit(etcd_taking.Taking._claim, ("return Grant(token, since=place.home.confirmed_at)", "return Grant(token)")),
        edit(
            etcd_requests.Requests.confirm,
            (
                "now < session.refresh_at(age) and session.is_fresh(now, session.ttl * LEFT_TO_OTHERS)",
                "now < session.refresh_at(session.ttl)",
            ),
        ),
    ]


@_caught_by("exclusion", "told")
def session_shorter_than_the_lease() -> list[Edit]:
    """The TTL of a session is rounded down to whole seconds."""
    return [
        edit(
            etcd_sessions.Sessions._session,
            ("kind = (waiting, math.ceil(ttl))", "kind = (waiting, math.floor(ttl))"),
            ("Session(math.ceil(ttl))", "Session(math.floor(ttl))"),
        )
    ]


@_caught_by("turns", "liveness")
def deaf_while_the_watch_begins() -> list[Edit]:
    """What was deleted between the look at the queue and the beginning of the watch is never heard of."""
    return [
        edit(etcd._News.began, ("if revision > self._seen_at and not self.patient:", "if False:")),
        edit(etcd.EtcdEngine._listen_in_doubt, ("if not news.knows_better and", "if False and")),
    ]


@_caught_by("exclusion", "told", "given")
def shared_slot() -> list[Edit]:
    """All attempts of a client on a name use the same key: one that comes second finds itself holding."""
    return [edit(etcd_sessions.Place.__init__, ("slot = session.slots", "slot = 0 * session.slots"))]


@_caught_by("patience")
def looks_beyond_its_time() -> list[Edit]:
    """A look at what was missed while a watch began is given its time, though the caller's is up."""
    within = "min(self.world.now() + LOOK_WITHIN, latest)"
    return [edit(etcd.EtcdEngine._has_changed, (within, "self.world.now() + LOOK_WITHIN"))]


@_caught_by("exclusion", "told")
def late_request_moves_the_key() -> list[Edit]:
    """A request to hang a waiter's key on a session is carried out late, when the key is a lease on another one."""
    return [
        edit(etcd_taking.Attempt.put_if_absent, ("messages.put_if_absent(", "messages.put(")),
        edit(etcd_taking.Taking._put, ("[attempt.absent()], [put, *looks], looks", "[], [put, *looks], []")),
        edit(
            etcd_taking.Taking._note_written,
            ("place.hangs_on(ours.lease) if", "place.hangs_on(ours.lease) or place.session if"),
        ),
    ]


@_caught_by("liveness", "turns")
def looks_for_as_long_as_it_waits() -> list[Edit]:
    """A look whose answer is lost makes a waiter deaf for the rest of its wait."""
    return [edit(etcd.EtcdEngine._has_changed, ("min(self.world.now() + LOOK_WITHIN, latest)", "latest"))]


@_caught_by("leftovers")
def counts_on_a_promise() -> list[Edit]:
    """Who hangs its key on a session leaves it to another one to keep that alive, who may have been interrupted."""
    fresh = " and session.is_fresh(now, session.ttl * LEFT_TO_OTHERS)"
    return [edit(etcd_requests.Requests.confirm, (fresh, ""))]
