"""Generates the reference pages from the code: the command line, the HTTP API, the messages of the node protocol.

Each page is a function that returns Markdown. The command line is read from the live command tree, the HTTP API from
the OpenAPI schema of the app that serves it, the messages from node.proto. Where pages are written is not known here.
"""

import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from docs_text import NOTE, reasons, safe, table

from holdfast.cli.commands.help import ELSE, EXIT_CODES
from holdfast.wire import errors as wire_errors
from holdfast.wire import files as wire_files
from holdfast.wire import http as public

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "src" / "holdfast" / "wire" / "node.proto"


# --- the command line ---


def command_tree() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its full name, in the order of `--help`."""
    import typer.main

    from holdfast.cli.app import app

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield path, command
        for name, sub in getattr(command, "commands", {}).items():
            if not sub.hidden:
                yield from walk(sub, (*path, name))

    yield from walk(typer.main.get_command(app), ("holdfast",))


def usage_of(path: tuple[str, ...], command: Any) -> str:
    words = [*path]
    if any(p.param_type_name == "option" for p in command.params):
        words.append("[OPTIONS]")
    if getattr(command, "commands", None):
        words.append("COMMAND [ARGS]…")
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = (parameter.metavar or parameter.name).upper()
            words.append(name if parameter.required else f"[{name}]")
    return " ".join(words)


def prose_and_examples(text: str) -> list[str]:
    """Help text as Markdown: paragraphs unchanged, indented or `holdfast …` lines as a block of commands."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\b", ""))):
        rows = paragraph.splitlines()
        head = [r for r in rows if not re.match(r"\s*(\$ )?holdfast\s|\s{2,}\S", r)]
        typed = [r for r in rows if r not in head]
        if not typed or len(head) > 1:
            lines += [safe(" ".join(r.strip() for r in rows)), ""]
            continue
        lines += [safe(head[0].strip()), ""] if head else []
        lines += ["```text", *(inspect.cleandoc("\n".join(typed)).splitlines()), "```", ""]
    return lines


def option_row(option: Any) -> list[str]:
    spellings = ", ".join(f"`{s}`" for s in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" `{option.metavar or _kind(option)}`"
    says = safe(" ".join((option.help or "").split()))
    default = "" if option.default in (None, False, (), [], "") or callable(option.default) else f"`{option.default}`"
    if isinstance(option.envvar, str):
        says += f" Else `{option.envvar}`."
    if option.multiple and "epeatable" not in says:
        says += " Repeatable."
    return [spellings + value, says, default]


def _kind(option: Any) -> str:
    """A placeholder for the value of an option that defines none itself."""
    annotation = getattr(getattr(option, "type_descriptor", None), "annotation", str)
    return {int: "N", float: "X"}.get(annotation, "TEXT")


def cli_page() -> str:
    lines = [
        "# Command line",
        "",
        NOTE,
        "`holdfast COMMAND --help` shows the same in a terminal. A job or a node is named by its id, a prefix of it, "
        "or its name. Colours and bars appear only in a terminal; `--json` prints data for programs. "
        "Which network a command uses: [several networks](../contexts.md).",
        "",
        "## Exit codes",
        "",
        table(["exit code", "what it means"], [[str(code), means] for code, means in EXIT_CODES.items()]),
        ELSE,
        "",
        "A job that fails by its user's fault gives its own exit code: 128 + n for signal n, 137 for memory, 124 "
        "for its time limit. A job that fails for another reason gives 75 if trying again may help, else 1. All "
        "errors: [errors](../errors.md).",
        "",
        "## Commands",
        "",
    ]
    for path, command in command_tree():
        if path == ("holdfast",):
            continue
        lines += [f"### {' '.join(path)}", "", "```text", usage_of(path, command), "```", ""]
        lines += prose_and_examples(command.help or "")
        if command.epilog:
            lines += prose_and_examples(command.epilog)
        arguments = [
            [f"`{(p.metavar or p.name).upper()}`", safe(" ".join((getattr(p, "help", "") or "").split()))]
            for p in command.params
            if p.param_type_name == "argument"
        ]
        if any(says for _, says in arguments):
            lines += [table(["argument", "what"], arguments)]
        options = [
            option_row(p) for p in command.params if p.param_type_name == "option" and p.name != "help" and not p.hidden
        ]
        if options:
            lines += [table(["option", "what", "default"], options)]
        if subs := getattr(command, "commands", None):
            linked = [f"[{name}](#{'-'.join([*path, name])})" for name, sub in subs.items() if not sub.hidden]
            lines += [f"Commands: {', '.join(linked)}.", ""]
    return "\n".join(lines)


# --- the HTTP API ---


def schema() -> dict[str, Any]:
    """The OpenAPI schema of the app that serves the API. No handler is called."""
    from holdfast.identity.admin import AdminToken
    from holdfast.orchestrator.api.app import make_app
    from holdfast.orchestrator.api.context import ApiContext

    # Routes are only read, not called, so nothing is needed behind them.
    guarded = make_app(cast(ApiContext, None), cast(AdminToken, None))
    return guarded._app.openapi_schema.to_schema()  # pyright: ignore


def said_of_routes() -> dict[tuple[str, str], str]:
    """What the table of routes says of each: (method, path) -> text."""
    from holdfast.orchestrator.api.routes import ROUTES

    return {(route.method.lower(), route.path): route.says for route in ROUTES}


def kind(shape: dict[str, Any]) -> str:
    """A schema in readable form, with links to the types on the page."""
    if ref := shape.get("$ref"):
        name = ref.rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for several in ("oneOf", "anyOf"):
        if several in shape:
            return " or ".join(kind(one) for one in shape[several])
    if shape.get("type") == "array":
        return f"list of {kind(shape.get('items', {}))}"
    if shape.get("type") == "object" and isinstance(shape.get("additionalProperties"), dict):
        return f"map to {kind(shape['additionalProperties'])}"
    if "enum" in shape:
        return ", ".join(f"`{value}`" for value in shape["enum"])
    found = shape.get("type", "anything")
    return " or ".join(found) if isinstance(found, list) else found


def content_of(content: dict[str, Any]) -> str:
    shapes = [kind(one.get("schema", {})) for one in content.values()]
    types = [one for one in content if one != "application/json"]
    shown = " or ".join(s for s in shapes if s != "anything")
    return shown if not types else f"{shown} (`{types[0]}`)".strip()


def route_lines(path: str, method: str, route: dict[str, Any], aside: str) -> list[str]:
    lines = [f"### {method.upper()} {path}", ""]
    named = " ".join(word.lower() for word in re.findall(r"[A-Z][a-z]*", route["summary"]))
    facts = [_sentence(says) for says in (route.get("description") or named, aside) if says]
    if body := route.get("requestBody"):
        facts.append(f"Takes {content_of(body['content'])}.")
    for status, answer in route["responses"].items():
        if status.startswith("2"):
            given = content_of(answer.get("content", {}))
            facts.append(f"Answers {status}" + (f" with {given}." if given and given != "null" else "."))
    refusals = [
        f"{status} ({', '.join(re.findall('`[a-z_]+`', answer['description']))})"
        for status, answer in route["responses"].items()
        if not status.startswith("2")
    ]
    facts.append(f"Refuses with {', '.join(refusals)}.")
    lines += [" ".join(facts), ""]
    parameters = [p for p in route.get("parameters", []) if p["in"] != "path"]
    if parameters:
        rows = [[f"`{p['name']}`", p["in"], kind(p["schema"]), _default(p["schema"])] for p in parameters]
        lines += [table(["parameter", "in", "type", "default"], rows)]
    return lines


def _sentence(says: str) -> str:
    says = safe(" ".join(says.split()))
    return says[0].upper() + says[1:] + ("" if says.endswith(".") else ".")


def _default(shape: dict[str, Any]) -> str:
    value = shape.get("default")
    return "" if value in (None, "") else f"`{value}`".lower() if isinstance(value, bool) else f"`{value}`"


def http_page() -> str:
    api = schema()
    said = said_of_routes()
    lines = [
        "# HTTP API",
        "",
        NOTE,
        "The orchestrator itself serves the same as OpenAPI under `/schema/openapi.json`. Times and durations are "
        "milliseconds. Everything returned is committed. A call that changes something and may be repeated takes an "
        "`Idempotency-Key`: the same key gives the same answer.",
        "",
        "Every call except `/healthz` needs `Authorization: Bearer TOKEN`: the admin token that `holdfast up` keeps in "
        "its folder, or an access token, which has a [role](roles.md). With `X-Holdfast-Owner: NAME` a network "
        "operator acts for an owner, in the role of a user: submits as that owner and sees only their jobs. Streams "
        "are server-sent events: `Last-Event-ID` resumes one, and a stream that ends without `event: end` was "
        "interrupted.",
        "",
        "An error is an [ErrorView](#errorview) with a stable `code`; 429 and 503 come with `Retry-After`.",
        "",
        "## Calls",
        "",
    ]
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            lines += route_lines(path, method, route, said[method, path])
    lines += ["## Types", ""]
    shapes = dict(api["components"]["schemas"])
    named = {
        name: one
        for module in (public, wire_errors, wire_files)
        for name, one in vars(module).items()
        if inspect.isclass(one) and one.__module__ == module.__name__
    }
    for name in sorted(set(shapes) | {"ErrorView"} & set(named)):
        shape = shapes.get(name) or {"properties": {f: {"type": _hint(t)} for f, t in _hints(named[name])}}
        lines += [f"### {name}", ""]
        why = reasons(named[name]) if name in named else {}
        doc = named[name].__dict__.get("__doc__") if name in named else None
        if doc:
            lines += [safe(" ".join(doc.split())), ""]
        if "enum" in shape:
            lines += [f"One of {kind(shape)}.", ""]
            continue
        wanted = set(shape.get("required", ()))
        rows = [
            [f"`{field}`" + (" (required)" if field in wanted else ""), kind(one), _default(one), why.get(field, "")]
            for field, one in shape.get("properties", {}).items()
        ]
        lines += [table(["field", "type", "default", "what"], rows)]
    return "\n".join(lines)


def sandbox_page() -> str:
    """What a sandbox shows of its machine."""
    from holdfast.client.secret_files import SECRET_NAMES, SECRET_SHAPES
    from holdfast.node.runtimes import child, system_view

    whats = list(dict.fromkeys(shape.what for shape in SECRET_SHAPES))
    return "\n".join(
        [
            "# What a job sees, and what is not sent",
            "",
            NOTE,
            "## What a sandbox shows of its machine",
            "",
            inspect.getdoc(system_view) or "",
            "",
            table(["path", "why"], [[f"`{shown.path}`", shown.why] for shown in system_view.SYSTEM]),
            ", ".join(f"`{path}`" for path in system_view.CPU_LISTS)
            + " list as many processors as the job asked for, so that programs that count them count the job's own.",
            "",
            "## Variables that a job may set otherwise",
            "",
            "`PYTHONUNBUFFERED` is 1: what Python prints is shown line by line. These are the job's cores, rounded up: "
            + ", ".join(f"`{name}`" for name in child.THREADS)
            + ". In a container the image's own values count, if it has any.",
            "",
            "## Files that are secret by name",
            "",
            "Patterns as in `.gitignore`. They are not sent with a folder unless `--include` names them "
            "([what goes along](../jobs.md#what-goes-along)).",
            "",
            ", ".join(f"`{name}`" for name in SECRET_NAMES),
            "",
            "## Secrets that are found by content",
            "",
            ", ".join(whats) + ".",
            "",
        ]
    )


def roles_page() -> str:
    """Route by role, from the security requirements of the OpenAPI document."""
    from holdfast.model import Role
    from holdfast.model.access import RESERVED_OWNERS

    why = reasons(Role)
    rows: list[list[str]] = []
    for path, methods in schema()["paths"].items():
        for method, route in methods.items():
            named = {role for one in route.get("security", ()) for found in one.values() for role in found}
            marks = ["yes" if role.value in named or not named else "" for role in Role]
            rows.append([f"[{method.upper()} {path}](http-api.md#{_anchor(method, path)})", *marks])
    return "\n".join(
        [
            "# Roles",
            "",
            NOTE,
            "A token has one role. The admin token is a network operator's; `holdfast access new` makes others: "
            "[give people access](../how-to/network-operator.md#give-people-access).",
            "",
            table(["role", "what it does"], [[f"`{role}`", why.get(role.name, "")] for role in Role]),
            "Within a call, a user reaches its own jobs and files, and a node operator the join tokens it made and the "
            "nodes that joined with them. An id of somebody else is answered with `not_found`, as one that does not "
            "exist. A call of another role is answered with `forbidden`. A call without a valid token is answered with "
            "`not_allowed`, unless it needs none.",
            "",
            "## Calls",
            "",
            table(["call", *(role.value for role in Role)], rows),
            "`GET /healthz` needs no token.",
            "",
            "## What each role sees",
            "",
            table(
                ["of", *(role.value for role in Role)],
                [
                    ["jobs, arrays, files, output", "its own", "nothing", "all"],
                    ["the journal", "entries of its own jobs", "entries of its own nodes, without jobs", "all"],
                    [
                        "nodes",
                        "all: state, what they offer and what is free; not the host name, load, reasons, operator",
                        "its own",
                        "all",
                    ],
                    ["attempts on a node", "their number, and ids of its own", "their number", "all"],
                    ["join tokens", "nothing", "its own", "all"],
                    ["access tokens, metrics, self-check", "nothing", "nothing", "all"],
                ],
            ),
            "## Names that no owner can have",
            "",
            ", ".join(f"`{name}`" for name in sorted(RESERVED_OWNERS)) + "; in any case, and with spaces or "
            "underscores in place of hyphens.",
            "",
        ]
    )


def _anchor(method: str, path: str) -> str:
    return re.sub(r"[^\w\s-]", "", f"{method} {path}".lower()).strip().replace(" ", "-")


def _hints(of: type) -> list[tuple[str, Any]]:
    return list(typing.get_type_hints(of).items())


def _hint(of: Any) -> str:
    return {"str": "string", "int": "integer", "bool": "boolean"}.get(getattr(of, "__name__", ""), "anything")


# --- the node protocol ---


def proto_page() -> str:
    """node.proto as Markdown: its comments as text, each message and enum as a table of its fields."""
    text = PROTO.read_text(encoding="utf-8")
    head = re.match(r"((?://[^\n]*\n)+)", text)
    assert head is not None
    lines = [
        "# Node protocol: messages",
        "",
        "Generated by `make docs` from [`node.proto`](../../src/holdfast/wire/node.proto); edit that, not this page. "
        "[The node protocol](../protocol.md) explains how the messages are used.",
        "",
        "```text",
        *(line.removeprefix("//").removeprefix(" ") for line in head[1].splitlines()),
        "```",
        "",
    ]
    names = set(re.findall(r"^(?:message|enum) (\w+)", text, re.MULTILINE))
    pattern = r"((?:^//(?! -)[^\n]*\n)*)^(message|enum|service) (\w+) \{\n(.*?)^\}"
    title = r"^// -{20,}\n((?:// [^\n]*\n)+)// -{20,}\n"
    for found in re.finditer(f"{title}|{pattern}", text, re.MULTILINE | re.DOTALL):
        section, above, what, name, body = found.groups()
        if section:
            words = " ".join(line.removeprefix("// ") for line in section.splitlines())
            first, _, rest = words.partition(". ")
            lines += [f"## {first.rstrip('.')}", "", *([rest, ""] if rest else [])]
            continue
        lines += [f"### {name}", ""]
        if comment := _comment(above):
            lines += [comment, ""]
        head_row = {"message": ["field", "type", "nr", "what"], "enum": ["value", "nr", "what"]}
        if what == "service":
            lines[-2:-2] = []
            lines += [*_calls(body), ""]
        else:
            lines += [table(head_row[what], list(_fields(body, what, names)))]
    return "\n".join(lines)


def _comment(block: str | None) -> str:
    kept = [line.strip().removeprefix("//").strip() for line in (block or "").splitlines() if line.strip()]
    return safe(" ".join(kept))


def _calls(body: str) -> Iterator[str]:
    for above, signature in re.findall(r"((?:^ +//[^\n]*\n)+) +rpc ([^;]+);", body, re.MULTILINE):
        yield f"- `{signature}`: {_comment(above)}"


def _fields(body: str, what: str, names: set[str]) -> Iterator[list[str]]:
    above: list[str] = []
    for line in body.splitlines():
        line = line.strip()
        if line.startswith("//"):
            above.append(line)
        elif field := re.match(r"(?:(.+) )?(\w+) = (\d+);\s*(?://\s*(.*))?$", line):
            kind_, name, number, aside = field.groups()
            says = " ".join(filter(None, [_comment("\n".join(above)), safe(aside or "")]))
            above = []
            if what == "enum":
                yield [f"`{name}`", number, says]
                continue
            linked = re.sub(
                r"\b(\w+)$", lambda m: f"[{m[1]}](#{m[1].lower()})" if m[1] in names else f"`{m[1]}`", kind_
            )
            yield [f"`{name}`", linked, number, says]
        else:
            above = []
