"""How a thing is known to be a lock: imports, aliases, attributes, annotations, results, blocks."""
import httpx
import redis
import redis as r
import redis.asyncio as aio
import requests
from redis import Redis as Client
from redis.lock import Lock as RedisLock
from typing import Optional
from app.clients import get_redis_client
import threading

shared = Client.from_url("redis://localhost")
shared.lock("a")  # expect: LH103
r.Redis().lock("a")  # expect: LH103
RedisLock(shared, "a")  # expect: LH103
RedisLock(shared, "a", 30)
shared.lock("a", 30)
get_redis_client().lock("a")  # expect: LH103
other.lock("a")


class Worker:
    backup: "Client"

    def __init__(self, given: Optional[Client], maybe: Client | None = None):
        self.redis = redis.Redis(host="localhost")
        self.given = given
        self._lock = threading.Lock()
        with redis.Redis() as block:
            block.lock("a")  # expect: LH103
        given.lock("a")  # expect: LH103
        maybe.lock("a")  # expect: LH103

    @property
    def connection(self):
        return redis.Redis()

    def make(self) -> Client:
        return self.factory()

    def work(self):
        self.redis.lock("a")  # expect: LH103
        self.backup.lock("a")  # expect: LH103
        self.connection.lock("a")  # expect: LH103
        self.make().lock("a")  # expect: LH103
        (self.redis if True else None).lock("a")  # expect: LH103
        self._lock.acquire()  # expect: LH115
        compute()
        self._lock.release()

    async def wait(self):
        client = aio.Redis()
        async with client.lock("a"):  # expect: LH103
            with self._lock:  # expect: LH197
                await compute()


class Child(Worker):
    def work(self):
        self.redis.lock("a")  # expect: LH103


def rebound(value):
    value = redis.Redis()
    value = something_else()
    value.lock("a", timeout=None)  # expect: LH103


def two_kinds(flag):
    thing = redis.Redis()
    thing = threading.Lock()
    thing.lock("a")


def options(**options):
    shared.lock("a", **options)


def asked(url, client: httpx.Client):
    session = requests.Session()
    with shared.lock("a", timeout=5):
        requests.get(url, timeout=30)  # expect: LH123
        httpx.put(url, timeout=30)  # expect: LH123
        requests.Session().get(url, timeout=30)  # expect: LH123
        session.put(url, timeout=30)  # expect: LH123
        client.get(url, timeout=30)  # expect: LH123
        with httpx.Client() as another:
            another.get(url, timeout=30)  # expect: LH123
        something.get(url, timeout=30)
