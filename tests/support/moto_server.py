"""S3 and DynamoDB as moto plays them, in a process of its own.

It is no AWS, but it keeps and refuses for real: conditional puts, ETags, condition expressions, transactions. It looks
at a condition and carries out the write in two steps, where the services have one; so `moto_app` lets requests in one
after another.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.support.python_server import running_module

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def running_moto() -> AbstractContextManager[str]:
    """Its URL, for as long as the block."""
    return running_module("tests.support.moto_app", answers_at="/moto-api/data.json", environment=CREDENTIALS)
