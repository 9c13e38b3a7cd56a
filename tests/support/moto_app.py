"""The program that plays S3 and DynamoDB: ``python -m tests.support.moto_app PORT``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


def main(port: int) -> None:
    played, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with one_at_a_time:
            return list(played(environ, start_response))

    run_simple("127.0.0.1", port, app, threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
