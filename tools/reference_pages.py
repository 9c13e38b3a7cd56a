"""Writes the reference from the source: `python tools/reference_pages.py` (`make docs` does).

The pages are built, not kept: what a docstring says is what the page says. Signatures are read from the source, so that
they look the same with every version of Python.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import click

HELP = ["-h", "--help"]
FOLDER = Path(__file__).parents[1] / "docs" / "reference"


class Page(NamedTuple):
    """A page: its title, and the modules whose public names are on it."""

    title: str
    modules: tuple[str, ...]


PAGES = {
    "leasehold": Page("Clients, locks, leases", ("leasehold", "leasehold.settings")),
    "errors": Page("Errors", ("leasehold.errors",)),
    "fences": Page("Fences", ("leasehold.fences", "leasehold.fences.http", "leasehold.fences.trigger")),
    "idempotency": Page("Idempotency keys", ("leasehold.patterns.idempotency", "leasehold.patterns.idempotency.http")),
    "jobs": Page("Once-only jobs", ("leasehold.patterns.jobs",)),
    "election": Page("Leader election", ("leasehold.patterns.election",)),
    "optimistic": Page("Optimistic concurrency", ("leasehold.patterns.optimistic", "leasehold.patterns.guards")),
    "partitions": Page("Single writer", ("leasehold.patterns.partitions", "leasehold.patterns.partitions.kafka")),
    "engines": Page(
        "Functions of single engines, and the doctor",
        ("leasehold.engines.postgres", "leasehold.engines.mysql", "leasehold.engines.etcd", "leasehold.doctor"),
    ),
    "events": Page(
        "Events, metrics, traces, logs",
        (
            "leasehold.events",
            "leasehold.telemetry.prometheus",
            "leasehold.telemetry.opentelemetry",
            "leasehold.telemetry.logs",
            "leasehold.telemetry.journal",
        ),
    ),
    "testing": Page("For tests", ("leasehold.testing", "leasehold.testing.plugin", "leasehold.testing.stalling")),
}
# Where a module has no list of its public names, these are what its users call.
CHOSEN = {
    "leasehold.settings": ("LockTerms", "AsyncLockTerms", "SeveralTerms", "AsyncSeveralTerms", "CommonTerms"),
    "leasehold.engines.postgres": ("lock_in_transaction", "lock_in_transaction_async", "tables_sql"),
    "leasehold.engines.mysql": ("tables_sql",),
    "leasehold.engines.etcd": ("ownership",),
    "leasehold.fences.trigger": ("install_sql", "remove_sql"),
    "leasehold.telemetry.journal": ("Journal", "read", "Told", "Refusal"),
    "leasehold.testing.stalling": ("Stall", "StallLease"),
    "leasehold.testing.plugin": ("stall",),
}
GIVEN = {
    f"{world}{name}"
    for world in ("", "Async")
    for name in ("Lease", "Leases", "Lock", "Several", "Run", "Job", "JobRun", "Term", "Conflicts", "Writer")
}
"""What the library makes and hands out: how it does so is of no interest."""


def public_names(module: ModuleType) -> list[str]:
    """What a module offers: its own list, or else what is defined in it and does not begin with an underscore."""
    chosen = CHOSEN.get(module.__name__)
    if chosen is not None:
        return [name for name in chosen if hasattr(module, name)]
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed, key=_blocking_first)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    )


def _blocking_first(name: str) -> tuple[str, bool]:
    """The async twin of a thing stands right after it."""
    return name.removeprefix("Async"), name.startswith("Async")


def is_error(value: object) -> bool:
    """Whether it belongs on the page of errors."""
    return inspect.isclass(value) and issubclass(value, Exception)


def entries(slug: str) -> Iterator[tuple[ModuleType, str, object]]:
    """The names on a page. Errors have a page of their own, wherever else they are offered."""
    for module_name in PAGES[slug].modules:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value = getattr(module, name)
            if slug == "errors" or not is_error(value):
                yield module, name, value


def page(slug: str) -> str:
    """One page of the reference."""
    lines = [f"# {PAGES[slug].title}", ""]
    if slug == "errors":
        lines += [
            "Every error that Leasehold raises. What is indented is a kind of what stands above it.",
            "",
            *_tree(),
            "",
        ]
    seen = set()
    of_module = None
    for module, name, value in entries(slug):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if module is not of_module and len(PAGES[slug].modules) > 1:
            lines += [f"## {module.__name__} {{ #module-{module.__name__} }}", ""]
        of_module = module
        lines += _entry(module, name, value)
    return "\n".join(lines) + "\n"


def _tree() -> list[str]:
    errors = importlib.import_module("leasehold.errors")

    def below(kind: type[BaseException], depth: int) -> Iterator[str]:
        yield f"{'    ' * depth}- [`{kind.__name__}`](#{kind.__name__})"
        children: list[type[BaseException]] = kind.__subclasses__()
        for child in sorted(children, key=lambda one: one.__name__):
            if child.__module__ == "leasehold.errors":
                yield from below(child, depth + 1)

    return [*below(errors.LeaseholdError, 0), *below(errors.GuaranteeWarning, 0)]


def _entry(module: ModuleType, name: str, value: object) -> list[str]:
    lines = [f"### {name} {{ #{name} }}", ""]
    if inspect.isclass(value):
        return lines + _class(name, value)
    if inspect.isfunction(value):
        return lines + _code(_signature(_function_node(value), name, value.__module__)) + _text(inspect.getdoc(value))
    fixture = getattr(value, "__wrapped__", None)  # of pytest
    if inspect.isfunction(fixture):
        return [*lines, "A fixture.", "", *_text(inspect.getdoc(fixture))]
    return lines + _code(f"{name} = {_shown(module, name)}")


def _class(name: str, value: type) -> list[str]:
    node = _class_node(value)
    bases = [one for one in node.bases if not ast.unparse(one).startswith(("_", "Generic", "Protocol"))]
    kinds = f"({', '.join(ast.unparse(one) for one in bases)})" if bases else ""
    lines = _code(f"class {name}{kinds}") + _text(inspect.getdoc(value) if value.__doc__ else None)
    members = _members(value)
    made, module = members.pop("__init__", (None, ""))
    if made is not None and name not in GIVEN:
        lines += _code(_signature(made, name, module, is_method=True)) + _text(ast.get_docstring(made))
    fields = _fields(value) if not is_error(value) or name == "LeaseholdError" else []
    properties = {one: members.pop(one) for one in list(members) if _is_property(members[one][0])}
    for one, (member, _) in properties.items():
        kind = ast.unparse(member.returns) if member.returns else "Any"
        fields.append((one, kind, (ast.get_docstring(member) or "").replace("``", "`")))
    if fields:
        lines += ["| | | |", "|---|---|---|"]
        lines += [f"| `{field}` | `{_cell(kind)}` | {_cell(text)} |" for field, kind, text in fields] + [""]
    for method, (member, module) in members.items():
        lines += [f"#### {name}.{method} {{ #{name}.{method} }}", ""]
        lines += _code(_signature(member, method, module, is_method=True)) + _text(ast.get_docstring(member))
    return lines


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _members(value: type) -> dict[str, tuple[Function, str]]:
    """Public methods and properties with their module, those of our bases too; of overloads, the last."""
    found: dict[str, tuple[Function, str]] = {}
    for kind in reversed(value.__mro__):
        if not kind.__module__.startswith("leasehold"):
            continue
        for node in _class_node(kind).body:
            if isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__init__"):
                found[node.name] = (node, kind.__module__)
    return found


def _fields(value: type) -> list[tuple[str, str, str]]:
    """Fields with their types and the text below them."""
    found: dict[str, tuple[str, str, str]] = {}
    for kind in reversed(value.__mro__):
        if not kind.__module__.startswith("leasehold"):
            continue
        body = _class_node(kind).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            text = ""
            if (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                text = inspect.cleandoc(after.value.value)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                field, type_text = node.target.id, ast.unparse(node.annotation)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                field, type_text = node.targets[0].id, ast.unparse(node.value)
            else:
                continue
            if not field.startswith("_"):
                found[field] = (field, type_text, text)
    return list(found.values())


def _is_property(node: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)


def _signature(node: Function, name: str, module: str, *, is_method: bool = False) -> str:
    parts = list(_arguments(node.args, module))
    if is_method and not any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list):
        del parts[0]
    is_constructor = node.name == "__init__"
    before = "" if is_constructor else "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not is_constructor else ""
    line = f"{before}{name}({', '.join(parts)}){returns}"
    if len(line) <= 100:
        return line
    return f"{before}{name}(\n    " + ",\n    ".join(parts) + f",\n){returns}"


def _arguments(arguments: ast.arguments, module: str) -> Iterator[str]:
    """Each argument as text, with the marks between them."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (one, default) in enumerate(zip(plain, defaults, strict=True)):
        yield _argument(one, default, module)
        if arguments.posonlyargs and number == len(arguments.posonlyargs) - 1:
            yield "/"
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(one, default, module)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _argument(one: ast.arg, default: ast.expr | None, module: str) -> str:
    """A default that is a constant of the module is shown by its value."""
    if default is None:
        return ast.unparse(one)
    text = ast.unparse(default)
    value = getattr(importlib.import_module(module), text, None) if text.isupper() else None
    if isinstance(value, int | float | str):
        text = repr(value)
    return f"{ast.unparse(one)} = {text}" if one.annotation else f"{one.arg}={text}"


@functools.cache
def _parsed(module_name: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module_name)))


def _class_node(kind: type) -> ast.ClassDef:
    return next(n for n in _parsed(kind.__module__).body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)


def _function_node(function: object) -> Function:
    module, name = function.__module__, getattr(function, "__name__", "")
    found = [n for n in ast.walk(_parsed(module)) if isinstance(n, Function) and n.name == name]
    # Of overloads, the last is the implementation; the one before it says more.
    return found[-2] if len(found) > 1 else found[-1]


def _shown(module: ModuleType, name: str) -> str:
    """How a constant or an alias of a type is written in the source."""
    for node in ast.walk(_parsed(_where_defined(module, name))):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            return ast.unparse(node.value)  # type: ignore[attr-defined]
    raise LookupError(f"{module.__name__}.{name} is not found where it should be defined")


def _where_defined(module: ModuleType, name: str) -> str:
    for node in _parsed(module.__name__).body:
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and any((one.asname or one.name) == name for one in node.names)
        ):
            return node.module
    return module.__name__


def _code(text: str) -> list[str]:
    return ["```py", text, "```", ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _text(doc: str | None) -> list[str]:
    """A docstring as Markdown: quotes of names become code, examples become blocks."""
    lines: list[str] = []
    example = False
    for line in (doc or "").splitlines():
        starts = line.lstrip().startswith(">>>")
        if starts and not example:
            lines += ["", "```pycon"]
            example = True
        elif example and not line.strip():
            lines.append("```")
            example = False
        lines.append(
            line if example else line.replace("``", "`").removesuffix("::") + (":" if line.endswith("::") else "")
        )
    if example:
        lines.append("```")
    return [*lines, ""]


def command_page() -> str:
    """What each verb of the command says of itself."""
    from leasehold.cli.app import verbs

    lines = ["# The command, verb by verb", "", "What `--help` says; [the command](../command.md) tells more.", ""]
    for names, command in _verbs(verbs, ("leasehold",)):
        title = " ".join(names)
        context = click.Context(command, info_name=title, max_content_width=100, help_option_names=HELP)
        lines += [f"## {title} {{ #{'-'.join(names)} }}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def _verbs(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield names, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=names[-1])
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _verbs(below, (*names, name))


def index_page() -> str:
    """All names, by the alphabet, with where to find them."""
    lines = ["# Reference", "", "Made from the source. Each page lists modules and their public names.", ""]
    lines += ["| page | modules |", "|---|---|"]
    for slug, about in PAGES.items():
        lines.append(f"| [{about.title}]({slug}.md) | {', '.join(f'`{one}`' for one in about.modules)} |")
    lines += [
        "| [The command](command.md) | `leasehold --help` |",
        "",
        "## All names",
        "",
        "| name | from | |",
        "|---|---|---|",
    ]
    found: dict[tuple[str, int], tuple[str, str, str, str]] = {}
    for slug in PAGES:
        for module, name, value in entries(slug):
            found.setdefault((name.lower(), id(value)), (name, module.__name__, slug, _first_line(value)))
    lines += [
        f"| [`{name}`]({slug}.md#{name}) | `{module}` | {_cell(text)} |"
        for _, (name, module, slug, text) in sorted(found.items(), key=lambda one: one[1][:2])
    ]
    return "\n".join(lines) + "\n"


def _first_line(value: object) -> str:
    doc = inspect.getdoc(value) if inspect.isclass(value) or inspect.isfunction(value) else None
    return (doc or "").partition("\n\n")[0].replace("``", "`")


def pages() -> dict[str, str]:
    """Every page of the reference, by its file name."""
    return {
        "index.md": index_page(),
        **{f"{slug}.md": page(slug) for slug in PAGES},
        "command.md": command_page(),
    }


def write(folder: Path = FOLDER) -> None:
    """Write all pages anew."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write()
    sys.stdout.write(f"The reference is in {FOLDER}\n")
