"""What is special about the fence in Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
from tests.fences.guards import Guard
from tests.fences.store_guards import BUCKET, GcsGuard

from leasehold.errors import Misuse, StaleToken
from leasehold.fences import AsyncGcsFence, GcsFence, gcs


@pytest.fixture
def guard(fresh_of: Callable[[str], Callable[[], Guard]]) -> Iterator[GcsGuard]:
    one = fresh_of("gcs")()
    assert isinstance(one, GcsGuard)
    yield one
    one.close()


def upload(guard: GcsGuard, body: bytes, **condition: str) -> httpx.Response:
    """Past the fence."""
    url = f"{guard.address}/upload/storage/v1/b/{BUCKET}/o"
    query = {"uploadType": "media", "name": guard.resource, **condition}
    return guard.past.post(url, params=query, content=body)


def test_the_server_of_the_tests_refuses_for_real(guard: GcsGuard) -> None:
    """What the fence relies on, asked of the server itself."""
    first = upload(guard, b"same", ifGenerationMatch="0").raise_for_status().json()
    assert upload(guard, b"2", ifGenerationMatch="0").status_code == 412
    second = upload(guard, b"same", ifGenerationMatch=first["generation"]).raise_for_status().json()
    assert second["generation"] != first["generation"], "a generation is unique, whatever the bytes are"
    assert upload(guard, b"3", ifGenerationMatch=first["generation"]).status_code == 412
    numbers = {"ifGenerationMatch": second["generation"], "ifMetagenerationMatch": second["metageneration"]}
    changed = guard.past.patch(guard.url, json={"metadata": {"a": "b"}}).raise_for_status().json()
    assert changed["generation"] == second["generation"]
    assert upload(guard, b"3", **numbers).status_code == 412, "the metadata are others by now"
    assert guard.past.patch(guard.url, params=numbers, json={"metadata": {}}).status_code == 412
    assert guard.past.get(guard.url, params={"alt": "media"}).content == b"same"


def announced_meanwhile(guard: GcsGuard) -> None:
    guard.write(1, "before")
    later = guard.another()
    with pytest.raises(StaleToken):
        guard.write(1, "stale", between=lambda: later.announce(2))
    assert (guard.peek(), guard.floor()) == ("before", 2)


def test_an_announcement_between_check_and_write_is_noticed(guard: GcsGuard) -> None:
    announced_meanwhile(guard)


def test_the_generation_alone_would_not_tell(guard: GcsGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: an announcement changes nothing but metadata."""
    right = gcs._condition
    monkeypatch.setattr(gcs, "_condition", lambda found: {"ifGenerationMatch": right(found)["ifGenerationMatch"]})
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        announced_meanwhile(guard)


def test_what_goes_along_with_an_object_stays(guard: GcsGuard) -> None:
    guard.fence.put(guard.resource, 5, b"{}", settings={"contentType": "application/json", "metadata": {"a": "b"}})
    guard.announce(6)
    fields = guard._fields()
    assert (fields["contentType"], fields["metadata"]["a"]) == ("application/json", "b")
    assert guard.past.get(guard.url, params={"alt": "media"}).content == b"{}", "the bytes are the caller's alone"
    with pytest.raises(Misuse, match="name is set by the fence"):
        guard.fence.put(guard.resource, 6, b"", settings={"name": "x"})


def test_objects_from_before_are_taken_over(guard: GcsGuard) -> None:
    upload(guard, b"theirs").raise_for_status()
    assert guard.fence.get(guard.resource, 5) == b"theirs"
    with pytest.raises(StaleToken):
        guard.write(4, "stale")
    assert guard.fence.delete(guard.resource, 5) is True
    assert guard.fence.delete(guard.resource, 5) is False
    assert guard.fence.get(guard.resource, 5) is None


def test_an_object_that_others_removed_meanwhile_is_put_again(guard: GcsGuard) -> None:
    guard.write(5, "x")
    guard.write(5, "y", between=lambda: guard.past.delete(guard.url).raise_for_status())
    assert (guard.peek(), guard.floor()) == ("y", 5)


def test_a_session_of_requests_serves_as_well(guard: GcsGuard) -> None:
    with requests.Session() as session:
        fence = GcsFence(session, BUCKET, endpoint=guard.address + "/")
        fence.put(guard.resource, 5, bytes(range(256)))
        assert fence.get(guard.resource, 6) == bytes(range(256))
        with pytest.raises(StaleToken):
            fence.put(guard.resource, 5, b"")
        with pytest.raises(requests.HTTPError):
            GcsFence(session, "no-such-bucket", endpoint=guard.address).put("thing", 5, b"x")


def test_errors_of_the_store_come_as_they_are(guard: GcsGuard) -> None:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        GcsFence(guard.past, "no-such-bucket", endpoint=guard.address).put("thing", 5, b"x")
    assert refused.value.response.status_code == 404
    guard.write(5, "x")
    guard.past.patch(guard.url, json={"metadata": {"leasehold-seen": "many"}}).raise_for_status()
    with pytest.raises(Misuse, match="no number"):
        guard.write(6, "y")


def test_sessions_of_the_other_world_are_refused(guard: GcsGuard) -> None:
    in_asyncio: Any = httpx.AsyncClient()
    with pytest.raises(Misuse, match="this session is blocking; give it to GcsFence"):
        AsyncGcsFence(guard.past, BUCKET)
    with pytest.raises(Misuse, match="one for asyncio; give it to AsyncGcsFence"):
        GcsFence(in_asyncio, BUCKET)
    with pytest.raises(Misuse, match="give a session of requests"):
        GcsFence(object(), BUCKET)
