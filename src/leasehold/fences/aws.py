"""How fences ask services of AWS, by the caller's own client: of boto3, or of aiobotocore in async code.

Neither library is imported here. A client's refusal that a fence expects becomes an answer; any other goes on to the
caller unchanged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from leasehold.errors import Misuse


class Request(NamedTuple):
    """One call of the client."""

    operation: str
    arguments: dict[str, Any]
    expected: frozenset[str] = frozenset()
    """The codes of refusals that the caller wants to see."""


class Answer(NamedTuple):
    """What the service said."""

    code: str | None
    """Why it refused; None when it did not."""
    fields: dict[str, Any]
    error: Exception | None = None
    """The refusal as the client raised it."""


def _refusal(error: Exception, expected: frozenset[str]) -> Answer | None:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    code = str(response.get("Error", {}).get("Code"))
    return Answer(code, response, error) if code in expected else None


def ask(client: Any, request: Request) -> Answer:
    """Call the client of boto3. A body is read to its end."""
    try:
        fields = dict(getattr(client, request.operation)(**request.arguments))
        if "Body" in fields:
            with fields["Body"] as body:
                fields["Body"] = body.read()
    except Exception as error:
        refused = _refusal(error, request.expected)
        if refused is None:
            raise
        return refused
    return Answer(None, fields)


async def ask_async(client: Any, request: Request) -> Answer:
    """Call the client of aiobotocore. A body is read to its end."""
    try:
        fields = dict(await getattr(client, request.operation)(**request.arguments))
        if "Body" in fields:
            async with fields["Body"] as body:
                fields["Body"] = await body.read()
    except Exception as error:
        refused = _refusal(error, request.expected)
        if refused is None:
            raise
        return refused
    return Answer(None, fields)


def check_client(client: Any, operation: str, *, of: str, asyncio: bool, fence: str) -> None:
    """Refuse what is no such client, or one of the other world."""
    if not hasattr(client, operation):
        raise Misuse(f"give a client of {of}, as boto3.client({of.lower()!r}) makes it")
    if hasattr(client, "__aenter__") is not asyncio:
        kind, right = ("blocking", fence) if asyncio else ("one for asyncio", f"Async{fence}")
        raise Misuse(f"this client is {kind}; give it to {right}")
