"""Locks that are made by hand, in the shapes in which people write them."""
import os
import time
import uuid

from django.core.cache import cache


class RedisLock:
    def __init__(self, conn, name):
        self.conn, self.key, self.token = conn, "lock:" + name, os.getpid()

    def acquire(self):
        while not self.conn.set(self.key, self.token, nx=True, ex=10):  # expect: LH133, LH141
            time.sleep(0.01)  # expect: LH131

    def renew(self):
        self.conn.expire(self.key, 10)  # expect: LH120

    def release(self):
        self.conn.delete(self.key)  # expect: LH110


class Forever:
    def acquire_lock(self, name):
        return self.db.setnx(name, str(uuid.uuid4()))  # expect: LH102


def single(task):
    lock_id = f"{task.name}-lock"
    acquire_lock = lambda: cache.add(lock_id, "true", 60)  # expect: LH105
    release_lock = lambda: cache.delete(lock_id)  # expect: LH110
    return acquire_lock, release_lock


def task(name):
    lock_id = f"{name}-lock"
    if cache.add(lock_id, "true", 60):  # expect: LH105
        try:
            work()
        finally:
            cache.delete(lock_id)  # expect: LH110


def compared_early(redis, key, token):
    if redis.get(key) != token:
        return
    redis.delete(key)  # expect: LH111


async def asynchronous(redis, key, token):
    value = await redis.get(key)
    if value == token:
        await redis.delete(key)  # expect: LH111


def dropped(redis, token):
    redis.set("the-lock", token, nx=True, ex=5)  # expect: LH130
    work()


def of_an_account(redis, user):
    if not redis.set(f"account_lock:{user}", "1", nx=True, ex=30):  # expect: LH105
        return
    try:
        work()
    finally:
        redis.delete(f"account_lock:{user}")  # expect: LH110


def prolonged(redis, lock_info, metrics):
    metrics.incr(lock_info.key)
    redis.expire(lock_info.key, 30)  # expect: LH120
    redis.expire(lock_info["key"], 30)  # expect: LH120


def prolonged_for_statistics(redis, tenant):
    redis.expire(f"lock:{tenant}:stats", 30)  # expect: LH120
    redis.expire(f"stats_lock:{tenant}", 30)  # expect: LH120
