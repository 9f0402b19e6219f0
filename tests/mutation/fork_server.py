"""A pytest plugin that collects the tests once and then tries one mutant after another, each in a fork of its own.

It reads requests and writes verdicts as lines of JSON on two file descriptors named in the environment. The fork puts
the code of the mutated function into the function object that everybody already holds, so no module is imported again.
"""

import ast
import contextlib
import gc
import json
import os
import resource
import select
import signal
import time
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from tests.mutation.functions import Target, targets_of
from tests.mutation.operators import put
from tests.mutation.rooms import FIRST

REQUESTS, VERDICTS = "HOLDFAST_MUTATION_REQUESTS", "HOLDFAST_MUTATION_VERDICTS"
HARMLESS = ("request", "_nothing_stays")
"""Fixtures that do nothing for a test that asks for no other."""
MEMORY_BYTES_MAX = 6 << 30
"""A mutant that never stops growing ends itself."""


def pytest_runtestloop(session: pytest.Session) -> bool:
    items = {item.nodeid: item for item in session.items}
    functions = _functions()
    _warm_up(items)
    gc.collect()
    gc.freeze()
    with (
        os.fdopen(int(os.environ[REQUESTS]), "r", encoding="utf-8") as requests,
        os.fdopen(int(os.environ[VERDICTS]), "w", encoding="utf-8") as verdicts,
    ):
        print(json.dumps({"ready": len(items)}), file=verdicts, flush=True)
        for line in requests:
            print(json.dumps(_try(json.loads(line), items, functions)), file=verdicts, flush=True)
    return True


def _warm_up(items: dict[str, pytest.Item]) -> None:
    """What most forks would read is read once, before any of them."""
    read = next((r for item in items.values() if (r := getattr(item.module, "recordings", None))), None)  # type: ignore[attr-defined]
    for item in items.values():
        if item.nodeid.startswith(FIRST) and "path" in _parameters(item) and read is not None:
            read.read(_parameters(item)["path"])


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType:
            code = thing.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(thing)
    return found


def _try(request: dict[str, Any], items: dict[str, pytest.Item], functions: Any) -> dict[str, Any]:
    """Fork, mutate, run the tests until one fails. `by`: the test that noticed, "time", "death" or nothing."""
    began = time.monotonic()
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        _in_fork(request, items, functions, sending)
    os.close(sending)
    heard = b""
    by = "time"
    while (left := request["limit_s"] - (time.monotonic() - began)) > 0:
        ready, _, _ = select.select([receiving], [], [], left)
        if not ready:
            break
        piece = os.read(receiving, 65_536)
        if not piece:
            by = heard.decode() or "death"
            break
        heard += piece
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(receiving)
    return {"by": "" if by == "none" else by, "took": round(time.monotonic() - began, 3)}


def _in_fork(request: dict[str, Any], items: dict[str, pytest.Item], functions: Any, sending: int) -> None:
    answer = "death"
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        _mutate(request, functions)
        answer = _noticed([items[name] for name in request["tests"] if name in items])
    except BaseException as broken:  # the parent has to hear of everything
        answer = f"broken: {type(broken).__name__}: {broken}"
    finally:
        os.write(sending, answer.encode())
        os._exit(0)


def _noticed(chosen: list[pytest.Item]) -> str:
    """Tests without fixtures are simply called: what pytest does around a test takes longer than most of them."""
    plain = [item for item in chosen if _is_plain(item)]
    for item in plain:
        try:
            item.obj(**_parameters(item))  # type: ignore[attr-defined]
        except pytest.skip.Exception:
            continue
        except BaseException:
            return item.nodeid
    others = [item for item in chosen if not _is_plain(item)]
    for place, item in enumerate(others):
        following = others[place + 1] if place + 1 < len(others) else None
        if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
            return item.nodeid
    return "none"


def _is_plain(item: pytest.Item) -> bool:
    return type(item) is pytest.Function and set(item.fixturenames) <= {*HARMLESS, *_parameters(item)}


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _mutate(request: dict[str, Any], functions: Any) -> None:
    path = Path(request["path"])
    code = mutated_code(path, request["qualname"], request["line"], request["number"])
    held = functions.get((str(path), request["qualname"], request["line"]))
    if not held:
        raise LookupError(f"no function object for {request['qualname']}")
    for function in held:
        function.__code__ = code


@cache
def _targets(path: Path) -> dict[tuple[str, int], Target]:
    """Parsed once: a fork changes its own copy."""
    found = targets_of(ast.parse(path.read_text(encoding="utf-8")), path)
    return {(target.qualname, target.first_line): target for target in found}


def mutated_code(path: Path, qualname: str, line: int, number: int) -> CodeType:
    """The code of the function with one change. It is compiled with its classes around it, and nothing else."""
    target = _targets(path)[qualname, line]
    function = target.function
    alone = type(function)(**{**dict(ast.iter_fields(function)), "decorator_list": []})
    ast.copy_location(alone, function)
    mutant = target.mutants[number]
    inside = ast.Module(body=[mutant.new if mutant.old is function else alone], type_ignores=[])
    if mutant.old is function:
        inside.body[0].decorator_list = []  # type: ignore[attr-defined]
    else:
        put(mutant, inside)
    for name in reversed(qualname.split(".")[:-1]):
        around = ast.ClassDef(name=name, bases=[], keywords=[], body=inside.body, decorator_list=[])
        inside = ast.Module(body=[ast.copy_location(around, function)], type_ignores=[])
    whole = compile(ast.fix_missing_locations(inside), str(path), "exec", dont_inherit=True)
    return next(code for code in _codes(whole) if code.co_qualname == qualname)


def _codes(code: CodeType) -> Any:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
