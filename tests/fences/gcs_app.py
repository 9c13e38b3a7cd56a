"""The program that plays Google Cloud Storage: ``python -m tests.fences.gcs_app PORT``.

The emulator keeps objects, metadata, generations and metagenerations, and serves one request after another. It does not
look at conditions, so that is done here, in the words of the service's documentation, before it gets a request.
"""

from __future__ import annotations

import functools
import http.server
import json
import sys
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator.exceptions import NotFound  # type: ignore[import-untyped]
from gcp_storage_emulator.handlers import buckets  # type: ignore[import-untyped]
from gcp_storage_emulator.server import RequestHandler  # type: ignore[import-untyped]
from gcp_storage_emulator.storage import Storage  # type: ignore[import-untyped]

BUCKET = "things"


class Conditional(RequestHandler):  # type: ignore[misc]
    """Compares first, and only then lets the emulator do it."""

    def do_POST(self) -> None:  # noqa: N802
        self._if_it_matches(super().do_POST)

    def do_PATCH(self) -> None:  # noqa: N802
        self._if_it_matches(super().do_PATCH)

    def do_GET(self) -> None:  # noqa: N802
        query, current = self._meant()
        if query.get("generation", current["generation"]) != current["generation"]:
            self._refuse(404, "notFound")  # the bucket keeps no older generations
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _if_it_matches(self, do: Any) -> None:
        query, current = self._meant()
        for name, condition in (("generation", "ifGenerationMatch"), ("metageneration", "ifMetagenerationMatch")):
            if condition in query and query[condition] != current[name]:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._refuse(412, "conditionNotMet")
                return
        do()

    def _meant(self) -> tuple[dict[str, str], dict[str, str]]:
        """The query, and the numbers that the object has now: 0 where there is none."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        name = query.get("name") or unquote(url.path.partition("/o/")[2])
        try:
            current = self.storage.get_file_obj(BUCKET, name)
        except NotFound:
            current = {"generation": "0", "metageneration": "0"}
        return query, current

    def _refuse(self, status: int, reason: str) -> None:
        content = json.dumps({"error": {"code": status, "errors": [{"reason": reason}]}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main(port: int) -> None:
    storage = Storage(use_memory_fs=True)
    buckets.create_bucket(BUCKET, storage)
    with http.server.HTTPServer(("127.0.0.1", port), functools.partial(Conditional, storage)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
