"""From a URL or a client object to where the server is; and no secret ever shows."""

from __future__ import annotations

import logging
import pickle
import traceback
import warnings

import pytest
import redis
import redis.asyncio
import redis.sentinel
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.redis_help import WORLDS, calling, family_at, want

from leasehold import Leasehold
from leasehold.errors import EngineUnavailable, GuaranteeWarning, InvalidURL, LeaseholdError, Misuse
from leasehold.testing.ports import free_port
from leasehold.wires.redis_client import target_from_client
from leasehold.wires.redis_target import target_from_url
from leasehold.wires.urls import Endpoint

CANARY = "c4n4ry"


@pytest.mark.parametrize(
    ("url", "endpoints", "service", "database", "credentials"),
    [
        ("redis://h", [("h", 6379)], None, 0, None),
        ("valkey://h:7/3", [("h", 7)], None, 3, None),
        ("redis://:pw@h", [("h", 6379)], None, 0, ("default", "pw")),
        ("redis://me:p%40%2F%3Aw@h:1/", [("h", 1)], None, 0, ("me", "p@/:w")),
        ("redis://me:a:b@h:1", [("h", 1)], None, 0, ("me", "a:b")),
        ("redis://[::1]:7", [("::1", 7)], None, 0, None),
        ("redis://[2001:DB8::1]", [("2001:db8::1", 6379)], None, 0, None),
        ("rediss://h_1.example.", [("h_1.example.", 6379)], None, 0, None),
        ("redis+sentinel://a,b:7,[::1]:8/main", [("a", 26379), ("b", 7), ("::1", 8)], "main", 0, None),
        ("rediss+sentinel://u:p@a/main/2", [("a", 26379)], "main", 2, ("u", "p")),
    ],
)
def test_urls_that_are_understood(
    url: str, endpoints: list[tuple[str, int]], service: str | None, database: int, credentials: tuple[str, str] | None
) -> None:
    target = target_from_url(url)
    assert [endpoint[:2] for endpoint in target.endpoints] == endpoints
    assert (target.service, target.database, target.credentials()) == (service, database, credentials)
    assert (target.tls is not None) == url.startswith("rediss")


def test_a_unix_socket_and_a_sentinels_own_credentials() -> None:
    target = target_from_url("redis+unix:///run/redis%20x/s.sock?db=2")
    assert target.endpoints[0].path == "/run/redis x/s.sock"
    assert target.database == 2
    sentinel = target_from_url(f"redis+sentinel://h/main?sentinel_username=s&sentinel_password={CANARY}")
    assert sentinel.sentinel_credentials() == ("s", CANARY)
    assert sentinel.credentials() is None


@pytest.mark.parametrize(
    "url",
    [
        "redis:/x",
        "http://h",
        "redis://",
        "redis://:0",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:1x",
        "redis://h:",
        "redis://h/x",
        "redis://h/-1",
        "redis://h/1/2",
        "redis://h/99999999999",
        "redis://h?x=1",
        "redis://h?ca=/x",
        "redis://user@h",
        "redis://user:@h",
        "redis://h:1:2",
        "redis://[::1",
        "redis://[x]:1",
        "redis://::1",
        "redis://ho st",
        "redis://hö",
        "redis://h\n",
        "redis://a,b",
        "redis://-h",
        "redis://:%zz@h",
        "redis://:%ff@h",
        "rediss://h?ca",
        "rediss://h?ca=",
        "rediss://h?ca=/no/such/file",
        "rediss://h?key=/no/such/file",
        "rediss://h?insecure_skip_verify=1",
        "rediss://h?insecure_skip_verify=true&insecure_skip_verify=true",
        "redis+unix://h/x",
        "redis+unix://",
        "redis+unix:///s?db=x",
        "redis+sentinel://h",
        "redis+sentinel://h/",
        "redis+sentinel://,/main",
        "redis+sentinel://h/main/x",
        "redis://h#fragment",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidURL) as refused:
        target_from_url(url)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{CANARY}@h:x",
        f"redis://{CANARY}@h",
        f"redis://:p/{CANARY}@h",
        f"redis://:p?{CANARY}@h",
        f"redis://:p#{CANARY}@h",
        f"redis://:p@{CANARY}@h",
        f"redis://:{CANARY}@h?password={CANARY}",
        f"redis://h?password={CANARY}",
        f"redis://h?username={CANARY}",
        f"redis://h?{CANARY}=1",
        f"redis://h:{CANARY}",
        f"redis://h/{CANARY}",
        f"redis://[{CANARY}]",
        f"redis://:%{CANARY}@h",
        f"wrong://:{CANARY}@h",
        f"redis+sentinel://h?sentinel_password={CANARY}",
        f"rediss://:{CANARY}@h?ca=/no/{CANARY}",
    ],
)
def test_a_refused_url_shows_nothing_of_itself(url: str) -> None:
    with pytest.raises(InvalidURL) as refused:
        target_from_url(url)
    assert_hidden(refused.value)


def assert_hidden(error: BaseException) -> None:
    """No secret in an error, its causes, or their tracebacks with local variables (of our own code)."""
    seen: BaseException | None = error
    while seen is not None:
        assert CANARY not in str(seen) + repr(seen)
        for frame in traceback.TracebackException.from_exception(seen, capture_locals=True).stack:
            if "/src/leasehold/" in frame.filename:
                assert CANARY not in str(frame.locals), f"{frame.filename}:{frame.lineno}"
        seen = seen.__cause__ or seen.__context__


@settings(max_examples=1500, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.builds(
            "{}://{}@{}{}{}".format,
            st.sampled_from(["redis", "rediss", "redis+unix", "redis+sentinel", "valkeys", "REDIS", ""]),
            st.text(alphabet=f":@/%?#&={CANARY}é\x00 ", max_size=12),
            st.text(alphabet="h1.:[],-_/%", max_size=10),
            st.sampled_from(["", ":1", ":99999", ":-1", "/", "/0", "/9x", "/main/1"]),
            st.text(alphabet="?&=cadbkey%41", max_size=12),
        ),
    )
)
def test_every_text_is_understood_or_refused_in_one_way(url: str) -> None:
    words = ""
    try:
        target = target_from_url(url)
        assert all(0 < endpoint.port < 65536 or endpoint.path for endpoint in target.endpoints)
    except InvalidURL as error:
        words = str(error)
    assert len(words) < 400
    assert "\n" not in words


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "url",
    [
        "redis://me:{secret}@127.0.0.1:{port}/1",
        "rediss://:{secret}@127.0.0.1:{port}",
        "redis+sentinel://:{secret}@127.0.0.1:{port}/main?sentinel_password={secret}",
        "redis+unix://:{secret}@/no/such/{port}",
    ],
)
@pytest.mark.parametrize("secret", [CANARY, f"%2F{CANARY}%40"])
def test_a_secret_never_shows(world: str, url: str, secret: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    family = family_at(url.format(secret=secret, port=free_port()))
    with calling(family, world) as caller:
        shown = [repr(family), repr(family.target), repr(family.facts), str(family.facts.address), repr(caller.engine)]
        with pytest.raises(EngineUnavailable) as told:
            caller.take(want("n"))
        assert_hidden(told.value)
        shown += [caplog.text, str(vars(caller.engine)), str(vars(caller.engine._wire))]
    assert not [text for text in shown if CANARY in text]
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):  # a secret that is written is one that leaks
        pickle.dumps(family.target)


def test_plain_tcp_to_another_machine_warns_once() -> None:
    url = f"redis://:{CANARY}@elsewhere-{free_port()}.example"
    with pytest.warns(GuaranteeWarning, match="plain TCP") as told, Leasehold(url):
        assert CANARY not in str(told[0].message)
    assert told[0].filename == __file__, "the caller's own line"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        family_at(url)
        family_at("redis://localhost")
        family_at("redis://127.9.9.9")
        family_at("redis://[::1]")
        family_at("rediss://elsewhere.example")


def test_a_certificate_that_is_not_checked_warns() -> None:
    url = "rediss://elsewhere.example:7777?insecure_skip_verify=true"
    with pytest.warns(GuaranteeWarning, match="not checked"):
        family_at(url)


def test_client_objects_are_read() -> None:
    target = target_from_client(redis.Redis(host="h", port=7, db=3, username="me", password=CANARY))
    assert (target.endpoints, target.database) == ((Endpoint("h", 7),), 3)
    assert target.credentials() == ("me", CANARY)
    assert CANARY not in repr(target)
    target = target_from_client(redis.asyncio.Redis.from_url("rediss://:pw@h2:8/1"))
    assert (target.endpoints, target.database) == ((Endpoint("h2", 8),), 1)
    assert target.tls is not None
    assert target.tls.check_hostname
    assert target.credentials() == ("default", "pw")
    target = target_from_client(redis.Redis(unix_socket_path="/run/s"))
    assert target.endpoints == (Endpoint("", 0, "/run/s"),)
    target = target_from_client(redis.Redis(host="h", ssl=True, ssl_cert_reqs="none"))
    assert target.tls is not None
    assert not target.tls.verify_mode


def test_sentinel_clients_are_read() -> None:
    for library in (redis.sentinel, redis.asyncio.sentinel):
        sentinel = library.Sentinel([("a", 1), ("b", 2)], sentinel_kwargs={"password": "s"}, password=CANARY)
        target = target_from_client(sentinel.master_for("main", db=2))
        assert target.endpoints == (Endpoint("a", 1), Endpoint("b", 2))
        assert (target.service, target.database) == ("main", 2)
        assert target.credentials() == ("default", CANARY)
        assert target.sentinel_credentials() == ("default", "s")
        with pytest.raises(Misuse, match="replicas"):
            target_from_client(sentinel.slave_for("main"))


def test_a_credential_provider_is_asked_at_each_connection_and_its_failure_is_typed() -> None:
    class Provider(redis.CredentialProvider):
        asked = 0

        def get_credentials(self) -> tuple[str, str]:
            self.asked += 1
            if self.asked > 1:
                raise RuntimeError(CANARY)
            return "me", CANARY

    target = target_from_client(redis.Redis(credential_provider=Provider()))
    assert target.credentials() == ("me", CANARY)
    with pytest.raises(RuntimeError):
        target.credentials()


@pytest.mark.parametrize(
    "client", [object(), 7, None, b"redis://h", redis.Redis(redis_connect_func=print), redis.Redis().pipeline]
)
def test_other_objects_are_refused(client: object) -> None:
    with pytest.raises(LeaseholdError) as refused:
        family_at(client)
    assert isinstance(refused.value, Misuse)
