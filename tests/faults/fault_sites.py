"""Every fsync, rename, send, spawn and read of the shells, found in their source, and the means to make each one fail
or be the last thing that happens. Standard library only: it is loaded into the processes under test.

A site is a call, named `file:function:kind` and numbered where a function has several of a kind:

    fsync     os.fsync, os.fdatasync, os.sync, syncfs, sync_folder
    rename    os.rename, os.replace, os.link, Path.rename, Path.replace
    write     durable_write, durable_write_all, durable_create, atomic_write: a sequence of the two above
    spawn     os.fork, os.posix_spawn, subprocess.*, asyncio.create_subprocess_*
    send      bytes handed to the other side: a socket, a gRPC stream, an HTTP request, an answer of an ASGI application
    open      open and Path.open, of a file to be read
    read      open, read, listdir, stat and the like, of `os` and paths
    test      os.access, and functions of `os.path` that answer False where they cannot know

Not sites: queues within a process (what is put there is sent at a site), and what a framework sends for us (answers of
Litestar handlers, the files and sockets of the database, the S3 library; test_fail_points.py covers commits).

In a process that has `site_faults/` on its PYTHONPATH and a control folder in its environment, modules of Holdfast are
compiled with each of these calls replaced by `__fault_at__("site", function, …)`. The control folder says what happens:

    armed/SITE    a file that holds a way; whoever visits the site next takes it, once in all processes; what fails
                  for a while fails for everybody
    taken/SITE    it was taken
    seen/SITE     the site was visited
"""

import ast
import asyncio
import errno
import inspect
import io
import marshal
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.parse import quote, unquote

CONTROL = "HOLDFAST_TEST_FAULT_SITES"
FAILS, BEFORE, AFTER = "fails", "dies before", "dies after"
WAYS = (FAILS, BEFORE, AFTER)
ONCE, AWHILE, UNREAD = "fails once", "fails for a while", "opens and fails to read"
PASSING_WAYS = (ONCE, AWHILE, UNREAD)
"""Of a read: EIO; EMFILE or ENOMEM for `WHILE_S`; EIO of the first read of a file. Nobody dies of it."""
WHILE_S = 2.0
OPEN, READ, TEST = "open", "read", "test"
READS = (OPEN, READ, TEST)
PURE = {"kernel", "policy", "model", "neural", "sim", "testing"}
"""Rooms without effects, and those that are there to test others. All else is a shell."""
NAME = "__fault_at__"
BOUND = "__fault_in__"
DURABLE = "durable.py"

_OS = {
    **dict.fromkeys(("fsync", "fdatasync", "sync"), "fsync"),
    **dict.fromkeys(("rename", "replace", "link", "renames"), "rename"),
    **dict.fromkeys(("fork", "forkpty", "posix_spawn", "posix_spawnp"), "spawn"),
}
_SPAWNS = {
    "subprocess": {"run", "Popen", "call", "check_call", "check_output"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}
_WRITES = {"durable_write", "durable_write_all", "durable_create", "atomic_write"}
_OPENS = {"open", "dup", "pipe", "pipe2", "listdir", "scandir", "walk"}
"""Functions of `os` that need a descriptor."""
_READS = _OPENS | {"read", "pread", "preadv", "stat", "lstat", "fstat", "readlink", "statvfs", "fstatvfs"}
_TESTS = {"exists", "lexists", "isfile", "isdir", "islink"}
"""Functions of `os.path` that answer False where they cannot know."""
_OF_PATHS = {"read_bytes", "read_text", "iterdir", "glob", "rglob"}
"""Methods that need a descriptor; those below do not."""
_OF_ENTRIES = {"exists", "is_dir", "is_file", "is_symlink", "stat", "lstat", "readlink"}
_LINES = {"line", "_line", "call", "context", "writer"}
_HTTP = {"http", "_http"}


# --- finding ---


def _last(place: ast.expr) -> str:
    return place.id if isinstance(place, ast.Name) else place.attr if isinstance(place, ast.Attribute) else ""


def _referred(place: ast.expr) -> str:
    """The kind of a function that is named, whether it is called there or handed on to be called."""
    match place:
        case ast.Attribute(value=ast.Name(id="os"), attr=attr):
            return _OS.get(attr, READ if attr in _READS else TEST if attr == "access" else "")
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=attr):
            return TEST if attr in _TESTS else READ if attr == "getsize" else ""
        case ast.Attribute(value=ast.Name(id=module), attr=attr) if attr in _SPAWNS.get(module, ()):
            return "spawn"
        case ast.Name(id=name) if name in _WRITES:
            return "write"
        case ast.Name(id="sync_folder"):
            return "fsync"
        case ast.Attribute(attr=attr) if attr in _OF_PATHS | _OF_ENTRIES:
            return READ
        case _:
            return ""


def _called(call: ast.Call) -> str:
    if kind := _referred(call.func):
        return kind
    match call.func:
        # Path.replace and Path.rename take one place; str.replace takes two, and structs are changed by keywords.
        case ast.Attribute(attr="rename" | "replace") if len(call.args) == 1 and not call.keywords:
            return "rename"
        case ast.Attribute(value=on, attr="write" | "send" | "sendall" | "sendmsg") if _last(on) in _LINES:
            return "send"
        case ast.Attribute(value=on, attr="request" | "send" | "put" | "delete" | "stream") if _last(on) in _HTTP:
            return "send"
        case ast.Attribute(attr="syncfs"):
            return "fsync"
        # Path.open names a mode; what else is opened (a store, a session) does not.
        case ast.Attribute(attr="open") if call.args and isinstance(call.args[0], ast.Constant):
            return _opened(call.args[0])
        case ast.Name(id="open"):
            return _opened(call.args[1] if len(call.args) > 1 else None)
        case ast.Name(id="send") if call.args and isinstance(call.args[0], ast.Dict):
            return "send"
        case _:
            return ""


def _opened(mode: ast.expr | None) -> str:
    written = isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+")
    return READ if written else OPEN


class _Sites(ast.NodeTransformer):
    """Names the sites of one module, and replaces them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._path: list[str] = []
        self._counts: dict[str, int] = {}
        self.found: list[str] = []

    def _site(self, kind: str) -> ast.Constant:
        name = f"{self._file}:{'.'.join(self._path) or 'module'}:{kind}"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        self.found.append(name if count == 1 else f"{name}:{count}")
        return ast.Constant(self.found[-1])

    def _within(self, node: Any) -> Any:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _within

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if kind := _called(node):
            site = self._site(kind)
            function = node.func
            if isinstance(function, ast.Attribute):
                function.value = self.visit(function.value)
            node.args = [site, function, *(self.visit(one) for one in node.args)]
            node.keywords = [self.visit(one) for one in node.keywords]
            node.func = ast.Name(NAME, ast.Load())
            return node
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._handed_on(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._handed_on(node) if isinstance(node.ctx, ast.Load) else node

    def _handed_on(self, node: ast.Attribute | ast.Name) -> ast.AST:
        if kind := OPEN if isinstance(node, ast.Name) and node.id == "open" else _referred(node):
            return ast.Call(ast.Name(BOUND, ast.Load()), [self._site(kind), node], [])
        return self.generic_visit(node)


def rewritten(source: bytes | str, file: str) -> tuple[ast.Module, list[str]]:
    sites = _Sites(file)
    tree = sites.visit(ast.parse(source))
    return ast.fix_missing_locations(tree), sites.found


def files(package: Path) -> Iterator[Path]:
    for file in sorted(package.rglob("*.py")):
        if file.relative_to(package).parts[0] not in PURE:
            yield file


def all_sites(package: Path) -> list[str]:
    """Of every shell in this package, in the order of the source."""
    found: list[str] = []
    for file in files(package):
        found += rewritten(file.read_bytes(), file.relative_to(package).as_posix())[1]
    return found


def kind_of(site: str) -> str:
    return site.split(":")[2]


# --- in the process under test ---

_control = ""
_inside = threading.local()
"""`way`: what is to happen within the durable write that this thread is in."""


def install(control: str) -> None:
    """From now on, modules of Holdfast are compiled with their sites replaced."""
    global _control
    _control = control
    import builtins

    setattr(builtins, NAME, fault_at)
    setattr(builtins, BOUND, lambda site, function: lambda *words, **named: fault_at(site, function, *words, **named))
    plain = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        _, package, file = str(self.path).rpartition("/holdfast/")
        if not package or file.partition("/")[0] in PURE:
            return plain(self, fullname)
        kept = f"{control}/code/{quote(file, safe='')}"
        try:
            with open(kept, "rb") as there:
                return marshal.loads(there.read())
        except (OSError, ValueError, EOFError):
            pass
        code = compile(rewritten(self.get_data(self.path), file)[0], self.path, "exec", dont_inherit=True)
        with open(f"{kept}.{os.getpid()}", "wb") as new:
            marshal.dump(code, new)
        os.rename(f"{kept}.{os.getpid()}", kept)
        return code

    SourceFileLoader.get_code = get_code


def fault_at(site: str, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
    """Call the function, unless something else is to happen here."""
    way = getattr(_inside, "way", "")
    if way and site.startswith(f"{DURABLE}:"):
        return _step(site, way, function, *words, **named)
    way = _visit(site)
    if not way:
        return function(*words, **named)
    if kind_of(site) in READS:
        return _unread(way, function, *words, **named)
    if kind_of(site) == "write":
        _inside.way = way
        try:
            return function(*words, **named)
        finally:
            _inside.way = ""
    return _faulty(kind_of(site), way, function, *words, **named)


def _step(site: str, way: str, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
    """Inside a durable write: it fails at its first step, and dies before or after its rename."""
    if way == FAILS or kind_of(site) == "rename":
        _inside.way = ""
        return _faulty(kind_of(site), way, function, *words, **named)
    return function(*words, **named)


def _visit(site: str) -> str:
    """What is to happen here, if anything; from now on it is no longer armed."""
    name = quote(site, safe="")
    os.close(os.open(f"{_control}/seen/{name}", os.O_WRONLY | os.O_CREAT, 0o666))
    armed, taken = f"{_control}/armed/{name}", f"{_control}/taken/{name}"
    try:
        with open(armed) as file:
            way = file.read()
        if way == AWHILE:
            return way if _lasts(taken) else ""
        os.rename(armed, taken)
    except OSError:
        return ""
    return way


def _lasts(taken: str) -> bool:
    """Whether a site that fails for a while still does; the while begins with the first visit."""
    try:
        os.close(os.open(taken, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return time.time() - os.stat(taken).st_mtime < WHILE_S
    return True


def _faulty(kind: str, way: str, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
    if way == FAILS:
        return _fail(kind, function, *words, **named)
    if way == BEFORE:
        _die()
    done = function(*words, **named)
    if inspect.isawaitable(done):
        return _then_die(done)
    if not (kind == "spawn" and done == 0):  # a child is not whom this is about
        _die()
    return done


async def _then_die(awaited: Any) -> Any:
    await awaited
    turns = 10
    while turns:  # what is written to a stream leaves with the next turns of its loop
        turns -= 1
        await asyncio.sleep(0.005)
    _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(kind: str, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
    """As the call itself would: by its own exception."""
    if kind == "spawn":
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    if kind != "send":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    owner = getattr(function, "__self__", None)
    module = type(owner).__module__
    if module.startswith("httpx"):
        import httpx

        raise httpx.WriteError("the connection was lost")
    if module.startswith("grpc"):
        if hasattr(owner, "cancel"):  # the node's side: the stream ends under the write
            owner.cancel()
            return function(*words, **named)
        from grpc._cython.cygrpc import ExecuteBatchError  # pyright: ignore

        raise ExecuteBatchError("the stream was lost")
    if isinstance(owner, asyncio.StreamWriter):
        owner.transport.abort()
        return None
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _unread(way: str, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
    """As the call itself would fail: by an error, or by the answer that it gives when it cannot know."""
    name = function.__name__
    if way == UNREAD:
        return _opened_once(function, *words, **named)
    opens = name in _OPENS | _OF_PATHS
    number = errno.EIO if way == ONCE else errno.EMFILE if opens else errno.ENOMEM
    error = OSError(number, os.strerror(number), str(words[0]) if words else None)
    if name == "access" or (getattr(function, "__module__", "") in ("genericpath", "posixpath") and name in _TESTS):
        return False
    if name == "walk":
        if onerror := named.get("onerror"):
            onerror(error)
        return iter(())
    raise error


class _Unreadable(io.FileIO):
    """A file whose first read fails."""

    _failed = False

    def _fail(self) -> None:
        if not self._failed:
            self._failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readinto(self, buffer: Any, /) -> int | None:
        self._fail()
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._fail()
        return super().readall()


def _opened_once(function: Callable[..., Any], *words: Any, **named: Any) -> Any:
    file = function(*words, **named)
    if not isinstance(file, io.BufferedReader | io.TextIOWrapper) or not file.readable():
        return file
    with file:
        raw = _Unreadable(os.dup(file.fileno()), "rb")
    buffered = io.BufferedReader(raw)
    return buffered if isinstance(file, io.BufferedReader) else io.TextIOWrapper(buffered, errors=file.errors)


# --- from outside ---


class Faults:
    """The control folder, as a test uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("armed", "taken", "seen", "code"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(0o777)

    def environment(self) -> dict[str, str]:
        path = [str(Path(__file__).parent / "site_faults"), os.environ.get("PYTHONPATH", "")]
        return {CONTROL: str(self.folder), "PYTHONPATH": os.pathsep.join(one for one in path if one)}

    def arm(self, site: str, way: str) -> None:
        (self.folder / "taken" / quote(site, safe="")).unlink(missing_ok=True)
        draft = self.folder / "draft"
        draft.write_text(way)
        draft.chmod(0o666)
        draft.rename(self.folder / "armed" / quote(site, safe=""))

    def disarm(self) -> None:
        for left in (self.folder / "armed").iterdir():
            left.unlink(missing_ok=True)

    def taken(self, site: str) -> bool:
        return (self.folder / "taken" / quote(site, safe="")).exists()

    def seen(self) -> set[str]:
        return {unquote(path.name) for path in (self.folder / "seen").iterdir()}

    def forget(self) -> None:
        """Nothing was seen so far."""
        for path in (self.folder / "seen").iterdir():
            path.unlink(missing_ok=True)
