"""From a namespace and a name to the keys on the server, and back.

All keys of a name share the hash tag ``{namespace:name}`` and so one slot of a cluster. In both, ``%``, ``{`` and ``}``
are percent-encoded, and in the namespace also ``:`` and what means something in a pattern; so the first colon ends the
namespace, no tag contains a brace, and no two pairs share a key.

>>> keys_of("shop", "order:7")[0]
'lh:{shop:order:7}:l'
>>> keys_of("a:b", "{x}")[0]
'lh:{a%3Ab:%7Bx%7D}:l'
>>> name_in(b"lh:{a%3Ab:%7Bx%7D}:l", "a:b")
'{x}'
"""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = "lh:"
HEAD, SEATS, ENDS, QUEUE, UNTILS, PLACES = "lsequw"
"""The last letter of each key, in the order in which scripts expect them."""
_IN_NAMES: Final = re.compile(r"[%{}]")
_IN_NAMESPACES: Final = re.compile(r"[%{}:*?\[\]\\]")


def keys_of(namespace: str, name: str) -> tuple[str, ...]:
    """The keys of one name."""
    tag = f"{PREFIX}{{{_encoded(_IN_NAMESPACES, namespace)}:{_encoded(_IN_NAMES, name)}}}:"
    return tuple(tag + letter for letter in (HEAD, SEATS, ENDS, QUEUE, UNTILS, PLACES))


def pattern_of(namespace: str) -> str:
    """The pattern that finds the head of every name in a namespace."""
    return f"{PREFIX}{{{_encoded(_IN_NAMESPACES, namespace)}:*}}:{HEAD}"


def name_in(key: bytes, namespace: str) -> str | None:
    """The name whose head this key is; None when it is no such key of this namespace."""
    start = f"{PREFIX}{{{_encoded(_IN_NAMESPACES, namespace)}:"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    if not text.startswith(start) or not text.endswith(f"}}:{HEAD}"):
        return None
    name = re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), text[len(start) : -3])
    return name if keys_of(namespace, name)[0] == text else None


def _encoded(special: re.Pattern[str], text: str) -> str:
    return special.sub(lambda found: f"%{ord(found[0]):02X}", text)
