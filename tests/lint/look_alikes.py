"""Code that looks like a dangerous lock and is none: nothing here may be reported."""
import contextlib
import os
import threading
import time

import filelock
import redis
from django.core.cache import cache
from redis.exceptions import LockError

r = redis.Redis()


def once_only_marker(user):
    if r.set(f"welcomed:{user}", "1", nx=True):
        send_mail(user)


def heartbeat(worker):
    r.set(f"worker:{worker}", time.time(), ex=30)
    r.expire(f"worker:{worker}:jobs", 30)


def cached(key):
    value = cache.get(key)
    if value is None:
        value = compute()
        cache.set(key, value, 60)
    return value


def counter(key):
    r.setnx(key, 0)
    r.incr(key)
    r.expire(key, 60)


def force_unlock(name):
    r.delete(f"lock:{name}")


def clear_locks(names):
    for name in names:
        r.delete(f"lock:{name}")


def state(key):
    if r.get(key) == b"done":
        r.delete(key)


def block_size(path):
    blocks = []
    blocks.extend(read(path))
    clock = time.time()
    return blocks, clock


def raises_instead():
    lock = filelock.FileLock("a.lock")
    lock.acquire(timeout=5)
    try:
        work()
    finally:
        lock.release()


def drained(semaphore: threading.Semaphore):
    while semaphore.acquire(blocking=False):
        count()


def guarded(lock):
    acquired = lock.acquire(blocking=False)
    try:
        work()
    finally:
        if acquired:
            lock.release()


def told(lock):
    try:
        lock.release()
    except LockError:
        logger.warning("the lock was lost")


def on_the_way_out(lock):
    try:
        work()
    except Exception:
        with contextlib.suppress(LockError):
            lock.release()
        raise


def new_name():
    while True:
        name = os.urandom(8).hex()
        if r.set(name, "1", nx=True, ex=60):
            return name


def in_transaction(key, token):
    with r.pipeline() as pipe:
        pipe.setnx(key, token)
        pipe.expire(key, 30)
        pipe.execute()


def script(key, token):
    r.eval("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end", 1, key, token)


def nothing_can_raise(self):
    self.lock.acquire()
    self.count += 1
    self.lock.release()


def passed_on():
    lock = threading.Lock()
    threading.Thread(target=work, args=(lock,)).start()
    with lock:
        work()


def hash_tag(user_id):
    with r.lock("{users}:all", timeout=30):
        work()


def signal_without_release(lock: threading.Lock):
    lock.acquire(blocking=False)


def failed_login(user):
    key = "account_lock:" + user
    if r.incr(key) == 1:
        r.expire(key, 60)


def waited():
    r.incr("lock_wait_total")
    r.expire("lock_wait_total", 86400)


def waits(name):
    key = f"lock:{name}:waiters"
    r.zadd(key, {"me": 1})
    r.expire(key, 60)


def told_of(name, who):
    r.hincrby("locks", name, 1)
    r.expire("locks", 3600)
    r.lpush(f"lock:{name}:by", who)
    r.expire(f"lock:{name}:by", 3600)


def kept_longer(sid):
    lock_key = f"session:{sid}:lock_info"
    r.expire(lock_key, 30)
    r.expire("lock_stats", 3600)
    r.expire(f"lock-history:{sid}", 3600)


def spent(key, limit):
    r.incr(key)
    if int(r.get(key)) == limit:
        r.delete(key)


def lock_account(user):
    lock_key = "account_lock:" + user
    r.set(lock_key, 1)
    r.expire(lock_key, 900)


def unlock_account(user):
    r.delete("account_lock:" + user)
    r.delete(f"user:{user}:locked")


def lock_account_and_tell(user):
    if not r.exists("account_locked:" + user):
        r.set("account_locked:" + user, 1, ex=900)
        send_mail(user)


def first_report(folder):
    if not os.path.exists(folder + "/lock_stats.csv"):
        open(folder + "/lock_stats.csv", "w").close()


def from_a_queue(queue, thread):
    with r.lock("charge", timeout=5):
        queue.put(queue.get(timeout=30), timeout=30)
        cache.set("charged", 1, timeout=3600)
        thread.join(timeout=30)
