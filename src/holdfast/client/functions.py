"""Python functions that run as jobs and return their values.

    import holdfast

    @holdfast.function(cpu=2, memory="4GiB", requirements="requirements.txt")
    def simulate(seed: int) -> float:
        ...

    simulate(7)                      # runs here, as usual
    simulate.remote(7)               # runs on the network; returns the value, or raises
    call = simulate.spawn(7)         # returns at once: call.id, call.result(), call.stop()
    simulate.map(range(100))         # one job each; the values in order
    await simulate.remote_async(7)   # the same where an event loop runs; also map_async

The job finds the function by name in the folder that is sent with it, so it runs the code in that folder. A function
typed into a notebook is sent as source. Arguments and return values travel as data (`holdfast.callee` says what is
supported): a value from an untrusted machine is parsed, never executed. The job is repeated elsewhere if its machine
dies, so by default the function should be safe to run twice; otherwise use `recovery="never"`.
"""

import functools
import inspect
import json
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

import msgspec

from holdfast import callee
from holdfast.blobs.ignore import Ignore
from holdfast.client import content, requests
from holdfast.client.function_source import Cell, cell_of
from holdfast.client.job_options import FOLDER_OPTIONS, Amount, CommonOptions, requested, unknown
from holdfast.client.log_lines import LogLine
from holdfast.client.selection import FolderRules
from holdfast.client.steps import Steps
from holdfast.errors import FunctionRaised, Garbled, JobFailed, Misuse
from holdfast.wire.http import ArrayView, InputRequest, JobRequest, JobView

if TYPE_CHECKING:
    from holdfast.client.client import Client

P = ParamSpec("P")
R = TypeVar("R")
TRACE_BYTES_MAX = 64 * 1024
"""Bytes of stderr shown after a failure: the end is what matters."""
_PYTHON = ("python3", "inputs/call/callee.py")
APART = 'Or give the folder that the function needs: @holdfast.function(folder="…").'
Calls = Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
"""The arguments of each call: positional, and by name."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a function's jobs. Amounts are written as on the command line."""

    cpu: Amount = 1
    memory: Amount = "512MiB"
    disk: Amount = "1GiB"
    gpu: int = 0
    gpu_memory: Amount = 0
    image: str = ""
    requirements: str = ""
    """Path of a requirements file in the folder."""
    network: bool = False
    time_limit: Amount = ""
    queue_limit: Amount = ""
    recovery: str = "restart"
    attempts: int | None = None
    priority: int = 5
    env: dict[str, str] = {}
    name: str = ""
    folder: str | os.PathLike[str] = ""
    """The folder to send; by default the one that the function's module is imported from."""
    include: Sequence[str] = ()
    """Files of the folder that are sent although an ignore file names them or they look secret."""
    gitignore: bool = True
    """Whether `.gitignore` files in the folder count."""

    def request(self, fallback_name: str) -> JobRequest:
        options = msgspec.structs.asdict(self)
        for word in FOLDER_OPTIONS:
            del options[word]
        options["name"] = self.name or fallback_name
        for span in ("time_limit", "queue_limit"):
            options[span] = options[span] or None
        return requested(_PYTHON, options)


class Home(msgspec.Struct, frozen=True):
    """Where a function is defined, and what must be sent so that the job finds it."""

    call: dict[str, Any]
    folder: Path | None = None
    cell: Cell | None = None


class Function(Generic[P, R]):
    """A function that can also run on the network. Made by `holdfast.function`."""

    def __init__(self, body: Callable[P, R], options: Options, client: "Client | None" = None) -> None:
        # First: this copies attributes of the function, which may itself be a Function.
        functools.update_wrapper(self, body)
        self._body = body
        self._options = options
        self._client = client

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here."""
        return self._body(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<holdfast function {self._body.__module__}.{self._body.__qualname__}>"

    def with_options(self, *, client: "Client | None" = None, **options: Unpack[CommonOptions]) -> "Function[P, R]":
        """The same function with other options, or on another network."""
        return Function(self._body, _replaced(self._options, options), client or self._client)

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on the network, wait, and return its value. Raises `FunctionRaised` if it raised, `JobFailed` if it
        could not run."""
        return self._network()._transport.run(self._ran(args, kwargs))

    async def remote_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same without blocking the event loop."""
        line = self._network()._transport.awaited()
        try:
            return await line.run(self._ran(args, kwargs))
        finally:
            await line.close()

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> "Call[R]":
        """Submit it and return at once. The arguments are first checked against the function's signature."""
        client = self._network()
        return Call(client, client._transport.run(self._sent(args, kwargs)), self._own_names())

    def map(self, items: Iterable[Any], *, timeout_s: float | None = None) -> list[R]:
        """One job for each item, which is the function's only argument; the values in the order of the items. After all
        have ended, raises the error of the first failed item; the values of the others are in its `values`."""
        return self._network()._transport.run(self._mapped(list(items), timeout_s))

    async def map_async(self, items: Iterable[Any], *, timeout_s: float | None = None) -> list[R]:
        """The same without blocking the event loop."""
        line = self._network()._transport.awaited()
        try:
            return await line.run(self._mapped(list(items), timeout_s))
        finally:
            await line.close()

    # --- as steps, for both ---

    def _sent(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[str]:
        inspect.signature(self._body).bind(*args, **kwargs)
        request = yield from self._prepared([(args, dict(kwargs))])
        view = yield from requests.submit(request, {})
        return view.id

    def _ran(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Any]:
        job = yield from self._sent(args, kwargs)
        return (yield from _result(job, self._own_names(), None))

    def _mapped(self, given: list[Any], timeout_s: float | None) -> Steps[list[Any]]:
        if not given:
            return []
        request = yield from self._prepared([((item,), {}) for item in given])
        request = msgspec.structs.replace(request, argv=[*_PYTHON, "{index}"])
        array = yield from requests.submit_array(request, [str(index) for index in range(len(given))], {})
        ended = yield from requests.wait_array(array.id, timeout_s, lambda view: None)
        return (yield from _gathered(ended, self._own_names()))

    # --- what is sent ---

    def _network(self) -> "Client":
        if self._client is None:
            from holdfast.client.client import Client

            self._client = Client.find()
        return self._client

    def _own_names(self) -> dict[str, Any]:
        return self._body.__globals__ if inspect.isfunction(self._body) else {}

    def _prepared(self, calls: Calls) -> Steps[JobRequest]:
        home = home_of(self._body, self._options, calls)
        package = ""
        rules = FolderRules(self._options.include, self._options.gitignore)
        with tempfile.TemporaryDirectory(prefix="holdfast-call-") as folder:
            # Written first: arguments that cannot be sent are rejected before anything is sent.
            lay_out(Path(folder), home, calls, self._body)
            if home.folder is not None:
                package = (yield from content.send_along(home.folder, APART, rules)).manifest
            # Arguments are sent whatever they look like: whoever makes the call gives them.
            sent = yield from content.send(folder, ignore=Ignore(()))
        request = self._options.request(self._body.__qualname__)
        inputs = [InputRequest("call", manifest=sent.manifest)]
        return msgspec.structs.replace(request, package=package, inputs=inputs)


class Call(Generic[R]):
    """A call of a function that runs or has run on the network."""

    def __init__(self, client: "Client", job: str, own: dict[str, Any] | None = None) -> None:
        self._client = client
        self._own = own or {}
        self.id = job
        """The id of its job; every command and method that takes a job accepts it."""

    def __repr__(self) -> str:
        return f"<holdfast call {self.id}>"

    def view(self) -> JobView:
        return self._client.jobs.get(self.id)

    def done(self) -> bool:
        return self.view().phase == "ended"

    def stop(self) -> None:
        self._client.jobs.stop(self.id)

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """Its output."""
        return self._client.jobs.logs(self.id, follow=follow)

    def result(self, *, timeout_s: float | None = None) -> R:
        """Wait for its value. Raises `FunctionRaised`, `JobFailed`, `JobCancelled` or `WaitExpired`."""
        return self._client._transport.run(_result(self.id, self._own, timeout_s))


@overload
def function(body: Callable[P, R], /) -> Function[P, R]: ...
@overload
def function(
    *, client: "Client | None" = None, **options: Unpack[CommonOptions]
) -> Callable[[Callable[P, R]], Function[P, R]]: ...
def function(body: Any = None, /, *, client: "Client | None" = None, **options: Unpack[CommonOptions]) -> Any:
    """Make a function that can run on the network. Options: see `Options`."""
    wanted = _replaced(Options(), options)

    def made(given: Any) -> Any:
        if isinstance(given, Function):
            return given.with_options(client=client, **options)  # already a Function: these options are added
        if not callable(given):
            raise Misuse(f"{given!r:.60} is not a function", hint="Write `@holdfast.function` above one.")
        return Function(given, wanted, client)

    return made if body is None else made(body)


def _replaced(options: Options, changes: Mapping[str, Any]) -> Options:
    """Raises Misuse if an option is unknown or invalid: when it is given, not when it is used."""
    for word in changes:
        if word not in Options.__struct_fields__:
            raise unknown(f"a function has no option {word!r}", word, Options.__struct_fields__)
    changed = msgspec.structs.replace(
        options, **{word: option for word, option in changes.items() if option is not None}
    )
    changed.request("it")
    return changed


# --- finding it ---


def home_of(body: Callable[..., Any], options: Options, calls: Calls = ()) -> Home:
    """Where the job will find the function. Raises Misuse if it could not. `calls`: the arguments it will get."""
    name = body.__qualname__
    if "<locals>" in name or "<lambda>" in name or not inspect.isfunction(body):
        raise Misuse(
            f"{name} cannot be found by name in another process",
            hint="Define it with `def` at the top of a file, or of a notebook's cell.",
        )
    for kind, asks in _NO_VALUE.items():
        if asks(body):
            raise Misuse(f"{name} is {kind}: it returns no value that can be sent", hint="Use `def` and `return`.")
    module = sys.modules.get(body.__module__)
    place = getattr(module, "__file__", None)
    if module is None or place is None or not os.path.exists(place):
        folder = Path(options.folder).resolve() if options.folder else None
        cell = cell_of(body, calls)
        return Home({"file": Cell.FILE, "beside": True, "name": name}, folder, cell)
    file = Path(place).resolve()
    if body.__module__ == "__main__":
        folder = Path(options.folder).resolve() if options.folder else file.parent
        if not file.is_relative_to(folder):
            raise Misuse(f"{file} is not in {folder}, the folder that is sent", hint="Give another `folder`.")
        return Home({"file": file.relative_to(folder).as_posix(), "name": name}, folder)
    parts = body.__module__.split(".")
    depth = len(parts) if file.name == "__init__.py" else len(parts) - 1
    root = file.parents[depth]
    if not options.folder and root in _installed():
        raise Misuse(
            f"{body.__module__} is installed in {root}, and everything installed there would be sent",
            hint="Give the `folder` that holds the module, or name its package in the `requirements`.",
        )
    return Home({"module": body.__module__, "name": name}, Path(options.folder).resolve() if options.folder else root)


_NO_VALUE: dict[str, Callable[[Any], bool]] = {
    "a coroutine (`async def`)": inspect.iscoroutinefunction,
    "a generator (it has `yield`)": inspect.isgeneratorfunction,
    "an asynchronous generator": inspect.isasyncgenfunction,
}


def _installed() -> set[Path]:
    return {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")}


def lay_out(folder: Path, home: Home, calls: Calls, body: Callable[..., Any]) -> None:
    """Write what `holdfast.callee` needs: itself, the location of the function, and the arguments of each call."""
    source = inspect.getsource(callee)
    (folder / "callee.py").write_text(source, encoding="utf-8")
    call = dict(home.call)
    try:
        if home.cell is not None:
            (folder / Cell.FILE).write_text(home.cell.source, encoding="utf-8")
            call["globals"] = {}
            for name, value in home.cell.values.items():
                call["globals"][name] = f"global-{name}"
                callee.write(value, str(folder / f"global-{name}"))
        for number, (positional, named) in enumerate(calls):
            callee.write([list(positional), named], str(folder / str(number)), body.__module__)
    except callee.NotAValue as wrong:
        raise Misuse(
            f"the arguments cannot be sent: {_by_name(str(wrong), inspect.signature(body))}",
            hint="Turn it into one of these, or read it there.",
        ) from None
    (folder / callee.CALL).write_text(json.dumps(call), encoding="utf-8")


def _by_name(wrong: str, signature: inspect.Signature) -> str:
    """The error about the arguments, which are encoded as `[[positional …], {named …}]`, with the parameters' names."""
    kinds = {name: one.kind for name, one in signature.parameters.items()}
    placed = [
        name for name, kind in kinds.items() if kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    rest = next((name for name, kind in kinds.items() if kind is Parameter.VAR_POSITIONAL), "")

    def named(found: re.Match[str]) -> str:
        place = int(found[1])
        if place < len(placed):
            return placed[place]
        return f"{rest}[{place - len(placed)}]" if rest else found[0]

    wrong = re.sub(r"\bit\[0\]\[(\d+)\]", named, wrong)
    return re.sub(r"\bit\[1\]\['(\w+)'\]", r"\1", wrong)


# --- return values ---


def _result(job: str, own: dict[str, Any], timeout_s: float | None) -> Steps[Any]:
    try:
        view = yield from requests.wait(job, timeout_s, check=True)
    except JobFailed as wrong:
        if wrong.code != "exit_code":
            raise
        raise FunctionRaised(wrong.job, (yield from _last_words(wrong.job))) from None
    return (yield from _value_of(view, own))


def _value_of(view: JobView, own: dict[str, Any]) -> Steps[Any]:
    if view.files is None:
        raise Garbled(f"{view.id} succeeded, but returned no value")
    with tempfile.TemporaryDirectory(prefix="holdfast-value-") as folder:
        yield from content.fetch(view.files.manifest, folder, only=callee.RETURNED)
        try:
            value = callee.read(str(Path(folder) / callee.RETURNED), own)
        except callee.NotAValue as wrong:
            raise Garbled(f"what {view.id} returned cannot be used: {wrong}") from None
    yield from requests.received(view.id)
    return value


def _gathered(array: ArrayView, own: dict[str, Any]) -> Steps[list[Any]]:
    values: list[Any] = [None] * array.items
    first: JobFailed | None = None
    for item in array.jobs:
        try:
            values[item.index] = yield from _result(item.job, own, None)
        except JobFailed as wrong:
            first = first or wrong
    if first is not None:
        first.values = values
        raise first
    return values


def _last_words(job: JobView) -> Steps[str]:
    """The end of the last attempt's stderr."""
    if not job.attempts:
        return ""
    said, offset = b"", 0
    while data := (yield from requests.output(job.id, job.attempts[-1].id, "stderr", offset)):
        offset += len(data)
        said = (said + data)[-TRACE_BYTES_MAX:]
    return said.decode("utf-8", "replace")
