"""How names look in Consul: ``leasehold/<namespace>/<name>/<kind>/<session>.<slot>``, nearly as on etcd.

The path of a URL must survive being tidied up on its way: no part of it may be empty, or consist of dots. And where a
lease has a lock-delay, its key is never used again, for Consul keeps it closed for a while after a loss.

>>> keys_of("shop", "a/b").slot("exclusive", "7f.0")
b'leasehold/shop/a%2Fb/e/7f.0'
>>> keys_of("", "..").all[0]
b'leasehold/%/%2E%2E/'
>>> name_in(b"leasehold/%/%2E%2E/", "")
'..'
"""

from __future__ import annotations

import functools
from typing import Final
from urllib.parse import quote, unquote

from leasehold.engines.key_queue import PREFIX, NameKeys

_NO_NAMESPACE: Final = b"%"


def _encoded(text: str) -> bytes:
    return quote(text, safe="").replace(".", "%2E").encode()


def namespace_start(namespace: str) -> bytes:
    """How all keys of a namespace begin."""
    return PREFIX + (_encoded(namespace) or _NO_NAMESPACE) + b"/"


@functools.lru_cache(maxsize=1024)
def keys_of(namespace: str, name: str) -> NameKeys:
    """The keys of one name."""
    return NameKeys(namespace_start(namespace) + _encoded(name))


def name_in(folder: bytes, namespace: str) -> str | None:
    """The name whose keys are in a folder; None when it is none of this namespace."""
    start = namespace_start(namespace)
    encoded = folder.removeprefix(start).removesuffix(b"/")
    text = unquote(encoded.decode("ascii", "replace"), errors="replace")
    return text if folder == start + _encoded(text) + b"/" else None
