"""System calls that a body makes in the sandbox: those that it does not need are refused, and programs still run."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.launcher import Launcher
from holdfast.node.runtimes.seccomp import ARCHITECTURES, numbers
from holdfast.testing.attempts import Attempts

FORBIDDEN = """
syslog=103/116 uselib=134/- ustat=136/- sysfs=139/- vhangup=153/58 pivot_root=155/41 _sysctl=156/- chroot=161/51
acct=163/89 settimeofday=164/170 mount=165/40 umount2=166/39 swapon=167/224 swapoff=168/225 reboot=169/142
sethostname=170/161 setdomainname=171/162 iopl=172/- ioperm=173/- create_module=174/- init_module=175/105
delete_module=176/106 get_kernel_syms=177/- query_module=178/- quotactl=179/60 nfsservctl=180/42
lookup_dcookie=212/18 clock_settime=227/112 mbind=237/235 set_mempolicy=238/237 get_mempolicy=239/236
kexec_load=246/104 add_key=248/217 request_key=249/218 keyctl=250/219 migrate_pages=256/238 unshare=272/97
move_pages=279/239 perf_event_open=298/241 fanotify_init=300/262 open_by_handle_at=304/265 setns=308/268 kcmp=312/272
finit_module=313/273 kexec_file_load=320/294 bpf=321/280 userfaultfd=323/282 io_uring_setup=425/425
io_uring_enter=426/426 io_uring_register=427/427 open_tree=428/428 move_mount=429/429 fsopen=430/430 fsconfig=431/431
fsmount=432/432 fspick=433/433 pidfd_getfd=438/438 process_madvise=440/440 mount_setattr=442/442 quotactl_fd=443/443
set_mempolicy_home_node=450/450 lsm_get_self_attr=459/459 lsm_set_self_attr=460/460 lsm_list_modules=461/461
"""
"""Calls that no body may make, with their numbers on x86-64 and arm64."""
SOCKET, SOCKETPAIR = "socket=41/198", "socketpair=53/199"
CLONE, CLONE3, PERSONALITY = "clone=56/220", "clone3=435/435", "personality=135/92"
COLUMN = ARCHITECTURES[os.uname().machine].column
CALLS = numbers(FORBIDDEN, COLUMN)
NAMESPACE_FLAGS = (0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000)
ARGUMENTS = {
    "AF_VSOCK": (SOCKET, [40, 1, 0], errno.EPERM),
    "AF_VSOCK with a dirty upper half": (SOCKET, [(1 << 32) | 40, 1, 0], errno.EPERM),
    "AF_VSOCK as a pair": (SOCKETPAIR, [40, 1, 0, 0], errno.EPERM),
    "AF_ALG": (SOCKET, [38, 5, 0], errno.EPERM),
    "personality without random addresses": (PERSONALITY, [0x0004_0000], errno.EPERM),
    "clone3": (CLONE3, [0, 0], errno.ENOSYS),
    "a call from the future": ("future=2000/2000", [], errno.ENOSYS),
    **{f"clone {flag:#x}": (CLONE, [flag | 17, 0, 0, 0, 0], errno.EPERM) for flag in NAMESPACE_FLAGS},
}
PROBE = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number, words in json.load(open("calls.json")):
    ctypes.set_errno(0)
    me = os.getpid()
    done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, words))
    if os.getpid() != me:
        os._exit(0)  # a clone that succeeded
    found[name] = ctypes.get_errno() if done == -1 else 0
print(json.dumps(found))
"""


def probe(attempts: Attempts, home: Path, calls: list[tuple[str, int, list[int]]], **changes: str) -> dict[str, int]:
    """The error of each call, made by one body."""
    (home / "work").mkdir(parents=True)
    (home / "work" / "calls.json").write_text(json.dumps(calls))
    attempt = attempts.start("python3", "-c", PROBE, home=home, **changes)
    assert attempt.outcome()["exit_code"] == 0, attempt.log("stderr")
    return json.loads(attempt.log("stdout"))


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[dict[str, int]]:
    """The error that each of the calls gave to a body in the sandbox."""
    folder = tmp_path_factory.mktemp("calls")
    attempts = Attempts(folder, launcher)
    calls: list[tuple[str, int, list[int]]] = [(name, number, [-1] * 6) for name, number in CALLS.items()]
    for name, (call, words, _) in ARGUMENTS.items():
        (number,) = numbers(call, COLUMN).values()
        calls.append((name, number, words))
    yield probe(attempts, folder / "forbidden", calls)
    attempts.clean_up()


@pytest.mark.spec("N4", "J2")
@pytest.mark.parametrize("call", CALLS)
def test_a_body_may_not_make_this_call(errors: dict[str, int], call: str) -> None:
    assert errors[call] == errno.EPERM, os.strerror(errors[call])


@pytest.mark.spec("N4", "J2")
@pytest.mark.parametrize("call", ARGUMENTS)
def test_a_body_may_not_make_a_call_with_these_arguments(errors: dict[str, int], call: str) -> None:
    assert errors[call] == ARGUMENTS[call][2], os.strerror(errors[call])


@pytest.mark.spec("N4")
def test_it_is_the_filter_that_refuses(attempts: Attempts, tmp_path: Path) -> None:
    """Outside of the sandbox the same calls fail by their arguments, not by a prohibition."""
    names = ("io_uring_setup", "userfaultfd", "keyctl", "add_key", "bpf", "perf_event_open", "unshare", "get_mempolicy")
    calls: list[tuple[str, int, list[int]]] = [(name, CALLS[name], [-1] * 6) for name in names]
    found = probe(attempts, tmp_path / "outside", calls, runtime="process")
    assert errno.EPERM not in found.values(), found


THIRTY_TWO_BITS = """
import ctypes, mmap, os, signal
code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"  # mov eax, 20 (getpid); int 0x80; ret
pid = os.fork()
if pid == 0:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS, status
x32 = ctypes.CDLL(None, use_errno=True)
assert x32.syscall(ctypes.c_long(0x40000000 | 39)) == -1 and ctypes.get_errno() == 38
"""


@pytest.mark.spec("N4")
def test_calls_with_the_numbers_of_another_architecture_are_refused(attempts: Attempts) -> None:
    script = THIRTY_TWO_BITS if os.uname().machine == "x86_64" else ""
    attempt = attempts.start("python3", "-c", script)
    assert attempt.outcome()["exit_code"] == 0, attempt.log("stderr")


THREADS = """
import threading, queue
done = queue.Queue()
workers = [threading.Thread(target=done.put, args=(n,)) for n in range(8)]
[worker.start() for worker in workers]; [worker.join() for worker in workers]
assert done.qsize() == 8
"""
PROCESSES = """
import multiprocessing as mp
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
"""
LOOP = """
import asyncio, socket, sys
async def main():
    server = await asyncio.start_server(lambda r, w: (w.write(b"hello"), w.close()), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b"hello"
    child = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    assert await child.wait() == 3
asyncio.run(main())
"""
LIBRARY = """
import ctypes, hashlib, lzma, mmap, os, select, signal, sqlite3, ssl, tempfile, time
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=4096); block.close(); block.unlink()
os.memfd_create("x"); os.eventfd(0); os.sched_setaffinity(0, os.sched_getaffinity(0)); select.epoll().close()
os.copy_file_range; os.getrandom(8); signal.setitimer(signal.ITIMER_REAL, 100); time.clock_gettime(time.CLOCK_BOOTTIME)
base = sqlite3.connect("base.db"); base.execute("pragma journal_mode=wal"); base.execute("create table t (n)")
ssl.create_default_context(); os.mkfifo("pipe"); os.chmod("pipe", 0o600); os.posix_spawn("/bin/true", ["true"], {})
"""
PROGRAMS = {
    "python3": [("threads.py", THREADS), ("processes.py", PROCESSES), ("loop.py", LOOP), ("library.py", LIBRARY)],
    "bash": [("x.sh", "set -o pipefail; for n in 1 2 3; do echo $n; done | sort -r | grep 3; cat < <(true)")],
    "perl": [("x.pl", "open(F, '|-', 'cat') or die; print F 'x'; close(F) or die; die if system('true');")],
    "node": [("x.js", "const {Worker} = require('worker_threads'); new Worker('setTimeout(() => {}, 1)', {eval: true});"
                      "require('fs').promises.readFile(__filename).then(() => console.log('read'))")],
    "sqlite3": [("x.sql", "create table t (n); insert into t values (1); select * from t;")],
    "awk": [("x.awk", "BEGIN { while ((\"seq 3\" | getline line) > 0) n += line; exit n != 6 }")],
    "ruby": [("x.rb", "Thread.new { 1 }.join; exit system('true')")],
    "php": [("x.php", "<?php exit(strlen(file_get_contents(__FILE__)) > 0 ? 0 : 1);")],
    "lua": [("x.lua", "assert(io.popen('echo x'):read() == 'x')")],
}  # fmt: skip
COMMANDS = {
    "java": "java -Xmx64m -version && java -Xmx64m --list-modules > f",
    "gcc": "echo 'int main(void) { return 0; }' > x.c && gcc -O1 x.c -o x && ./x",
    "make": "printf 'all: a b\\na b:\\n\\ttrue $@\\n' > Makefile && make -j 2",
    "git": "git init -q r && cd r && git config user.email a@b && git config user.name c && echo x > f && git add f &&"
    " git commit -qm x && git clone -q . ../s && git gc -q",
    "tar": "seq 9 > f && tar czf f.tgz f && rm f && tar xzf f.tgz && test -s f",
    "xz": "seq 99999 > f && xz -T 2 f && xz -d f.xz",
    "zstd": "seq 99999 > f && zstd -q -T2 f && zstd -qt f.zst",
    "openssl": "openssl rand -hex 8 && openssl genpkey -algorithm ed25519 -out k",
    "ssh-keygen": "ssh-keygen -q -t ed25519 -N '' -f k",
    "curl": "curl -s file:///etc/passwd > f && test -s f",
    "rsync": "mkdir a && seq 9 > a/f && rsync -a a/ b && cmp a/f b/f",
    "find": "mkdir -p a/b && find . -name b -exec test -d {} ';'",
    "strace": "strace -f -o log true && test -s log",
    "gdb": "gdb -batch -ex run -ex quit true",
    "ps": "ps aux > f && timeout 5 nproc && nice -n 5 true && setsid true && flock f true",
    "sh": "ulimit -a > f; mkfifo p; (echo x > p &); read y < p; test $y = x; df . > g; date; id",
}
INSTALLED = [name for name in PROGRAMS | COMMANDS if shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")]


@pytest.mark.spec("J2", "J6")
@pytest.mark.parametrize("program", INSTALLED)
def test_a_popular_program_runs_in_the_sandbox(attempts: Attempts, tmp_path: Path, program: str) -> None:
    """Those of the list that this machine has."""
    work = tmp_path / "att" / "work"
    work.mkdir(parents=True)
    lines = [COMMANDS[program]] if program in COMMANDS else []
    for name, content in PROGRAMS.get(program, ()):
        (work / name).write_text(content)
        flags = {"awk": "-f ", "sqlite3": "base.db < "}.get(program, "")
        lines.append(f"{program} {flags}{name}")
    attempt = attempts.start("sh", "-c", "set -e; " + "\n".join(lines), home=tmp_path / "att")
    assert attempt.outcome()["exit_code"] == 0, attempt.log("stderr")[-2_000:]


@pytest.mark.spec("J2")
def test_the_list_of_programs_is_tried_here() -> None:
    assert {"sh", "bash", "python3", "perl", "tar", "find"} <= set(INSTALLED)
