"""Runs the linter on popular packages and keeps the reviewed list of what it reports there.

    python tools/lint_corpus.py SITE_PACKAGES            write docs/data/lint-corpus.json anew; reviews are kept
    python tools/lint_corpus.py SITE_PACKAGES --check    only say what is new or gone

SITE_PACKAGES is the folder of a virtual environment into which the packages of `PACKAGES` were installed. Every finding
needs a review: why it is defensible, written into the list by hand. What is not defensible is a false alarm, and the
rule has to be mended instead.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from leasehold.lint.config import Config
from leasehold.lint.run import lint

LIST = Path(__file__).parents[1] / "docs" / "data" / "lint-corpus.json"
PACKAGES = (
    "aioredlock", "alembic", "apache-airflow-core", "apscheduler", "arq", "buildbot", "celery", "celery-once",
    "celery-redbeat", "celery-singleton", "dagster", "diskcache", "distributed", "django", "django-cacheops",
    "django-celery-beat", "django-q2", "django-redis", "django-rq", "dogpile.cache", "dramatiq", "etcd3", "fasteners",
    "filelock", "flask-caching", "huey", "indico", "joblib", "jupyterhub", "kazoo", "kombu", "limits", "luigi",
    "matrix-synapse", "pals", "pgqueuer", "portalocker", "pottery", "prefect", "pretix", "procrastinate",
    "python-consul", "python-redis-lock", "redis", "redlock-py", "rq", "salt", "saq", "scrapy-redis", "sentry-sdk",
    "sherlock", "sqlalchemy", "taskiq", "wagtail", "walrus",
)  # fmt: skip


def named(name: str) -> str:
    """The name of a package as it is compared."""
    return name.lower().replace("_", "-")


def sources_of(package: Distribution) -> list[str]:
    """The Python files that a package installed, without its tests."""
    files = [Path(str(file.locate())) for file in package.files or () if file.suffix == ".py"]
    return [str(file) for file in files if file.is_file()]


def found_in(folder: Path) -> dict[str, object]:
    """What the linter reports on the packages, and how much it read."""
    installed = {named(one.metadata["Name"]): one for one in distributions(path=[str(folder)])}
    missing = [name for name in PACKAGES if name not in installed]
    if missing:
        raise SystemExit(f"not installed in {folder}: {', '.join(missing)}")
    packages, findings, lines = [], [], 0
    for name in PACKAGES:
        package = installed[name]
        report = lint(sources_of(package), Config())
        lines += report.lines
        packages.append({"package": name, "version": package.version, "files": report.files, "lines": report.lines})
        findings += [
            {
                "package": name,
                "version": package.version,
                "file": Path(one.path).relative_to(folder).as_posix(),
                "line": one.line,
                "code": one.code,
                "source": one.source_line.strip(),
            }
            for one in report.findings
        ]
    return {"lines": lines, "packages": packages, "findings": findings}


def key_of(finding: dict[str, object]) -> tuple[object, ...]:
    """What makes a finding the same one in another version."""
    return finding["package"], finding["file"], finding["code"], finding["source"]


def main() -> int:
    """Write the list, or compare with it."""
    folder = Path(sys.argv[1]).resolve()
    found = found_in(folder)
    known = json.loads(LIST.read_text()) if LIST.exists() else {"findings": []}
    reviews = {key_of(one): one.get("why", "") for one in known["findings"]}
    findings: list[dict[str, object]] = found["findings"]  # type: ignore[assignment]
    for one in findings:
        one["why"] = reviews.get(key_of(one), "")
    if "--check" not in sys.argv:
        LIST.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    new = [one for one in findings if not one["why"]]
    for one in new:
        print(f"not reviewed: {one['package']} {one['file']}:{one['line']} {one['code']} {one['source']}")
    gone = set(reviews) - {key_of(one) for one in findings}
    print(f"{len(findings)} findings in {found['lines']} lines; {len(new)} not reviewed; {len(gone)} no longer there")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
