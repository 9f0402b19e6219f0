"""A network namespace for one body that may use the network, with a user-mode router outside of it.

What the body sends leaves the machine as if the node's own user had sent it, so nothing near the machine may be
reachable: not its loopback, not its own addresses, not the private networks around it (`node/addresses.py` has the
list). Routes inside enforce that, and the body has no right to change them. Bandwidth is limited both ways. IPv4 only.
Knows no sandbox and no order.
"""

import contextlib
import errno
import os
import select
import signal
from functools import cache

from holdfast.node import addresses, linux
from holdfast.node.runtimes import child
from holdfast.node.runtimes.hindrances import NONE, NOT_ROOT, Hindrance, Lack, not_installed

_SUBNET = "100.127.255"
"""In the range for carrier-grade NAT, which no office or home network uses."""
RESOLVER = f"{_SUBNET}.3"
_MTU = 65_520
_READY_S = 10.0
_BURST_BYTES = 128 * 1024


def _program(name: str) -> str | None:
    places = (os.path.join(folder, name) for folder in (*os.get_exec_path(), "/usr/sbin", "/sbin"))
    return next((place for place in places if os.access(place, os.X_OK)), None)


@cache
def hindrance() -> Hindrance:
    """Why no body can have a network on this machine; empty if it can."""
    if os.geteuid() != 0:
        return NOT_ROOT
    for program, package in (("slirp4netns", "slirp4netns"), ("ip", "iproute2"), ("tc", "iproute2")):
        if _program(program) is None:
            return not_installed(program, package)
    return NONE if os.path.exists("/dev/net/tun") else Hindrance("there is no /dev/net/tun", Lack.TUN)


@cache
def rate_hindrance() -> Hindrance:
    """Why the network of a body cannot be rate-limited, or why there is none; empty if it can, which is tested."""
    if why := hindrance():
        return why
    try:
        SandboxNetwork(1_024).end()
    except OSError as error:
        return Hindrance(str(error.strerror or error))
    return NONE


class SandboxNetwork:
    """Lives as long as the router, which ends with this process at the latest."""

    def __init__(self, kib_s: int = 0, namespace: int | None = None) -> None:
        """Ready when this returns. Raises OSError if it cannot be set up. `kib_s`: limit for each direction; 0: no
        limit. `namespace`: descriptor of an existing one; this object takes it over."""
        if why := hindrance():
            raise OSError(errno.ENOTSUP, f"there is no network for jobs: {why}")
        self.fd = _namespace() if namespace is None else namespace
        self._refused: set[str] = set()
        try:
            self._refuse({*addresses.IPV4_NON_PUBLIC, *_own()})
            self._start_router()
            if kib_s:
                self._limit(kib_s)
        except OSError:
            if self.router:
                self.end()
            else:
                self.close()
            raise

    def refresh(self) -> None:
        """Refuse addresses that the machine got since. One that it no longer has stays refused until the body ends.
        Called again and again: what fails now is done the next time."""
        with contextlib.suppress(OSError):
            self._refuse(_own())

    def enter(self) -> None:
        linux.enter(self.fd, linux.CLONE_NEWNET)

    def close(self) -> None:
        os.close(self.fd)

    def end(self) -> None:
        """End the router, if nothing else will."""
        os.kill(self.router, signal.SIGKILL)
        os.waitpid(self.router, 0)
        self.close()

    def _refuse(self, networks: set[str]) -> None:
        if new := sorted(networks - self._refused):
            self._batch("ip", [f"route replace prohibit {network}" for network in new])
            self._refused.update(new)

    def _start_router(self) -> None:
        hear, say = os.pipe()
        words = ("--configure", f"--mtu={_MTU}", "--disable-host-loopback", "--enable-sandbox", "--enable-seccomp")
        words += (f"--cidr={_SUBNET}.0/24", f"--ready-fd={say}", "--netns-type=path", f"/proc/self/fd/{self.fd}")
        argv = (_program("slirp4netns") or "", *words, "tap0")
        said = os.memfd_create("said")
        try:
            self.router = child.spawn(argv, {}, "/", said, said, keep=(say, self.fd), confine=_aside)
            os.close(say)
            ready, _, _ = select.select([hear], [], [], _READY_S)
            if not ready or not os.read(hear, 1):
                last = os.pread(said, 500, 0).decode(errors="replace").strip()
                raise OSError(errno.EIO, f"slirp4netns did not start: {last}")
        finally:
            os.close(hear)
            os.close(said)

    def _limit(self, kib_s: int) -> None:
        """Incoming traffic is redirected to a device of its own, since only outgoing traffic can be queued."""
        shape = f"root tbf rate {kib_s * 8192}bit burst {max(_BURST_BYTES, 2 * _MTU)} latency 100ms"
        self._batch("ip", ["link add name ifb7 type ifb", "link set dev ifb7 up"])
        redirect = "u32 match u32 0 0 action mirred egress redirect dev ifb7"
        self._batch(
            "tc",
            [
                f"qdisc add dev tap0 {shape}",
                f"qdisc add dev ifb7 {shape}",
                "qdisc add dev tap0 handle ffff: ingress",
                f"filter add dev tap0 parent ffff: protocol all {redirect}",
            ],
        )

    def _batch(self, program: str, lines: list[str]) -> None:
        told = os.memfd_create("batch")
        said = os.memfd_create("said")
        try:
            os.write(told, "".join(f"{line}\n" for line in lines).encode())
            argv = (_program(program) or program, "-batch", f"/proc/self/fd/{told}")
            os.lseek(told, 0, os.SEEK_SET)
            pid = child.spawn(argv, {}, "/", said, said, keep=(told,), confine=self.enter)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                words = os.pread(said, 300, 0).decode(errors="replace").strip()
                raise OSError(errno.EIO, f"{program} could not set up the job's network: {words}")
        finally:
            os.close(told)
            os.close(said)


def _own() -> set[str]:
    return {address for address in linux.own_addresses() if ":" not in address}


def _aside() -> None:
    """The router changes mounts in its view of the machine. If mounts are shared, that would change everyone's."""
    linux.leave(linux.CLONE_NEWNS)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def _namespace() -> int:
    """A descriptor of a new network namespace. This process returns to its own afterwards: it has one thread."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.leave(linux.CLONE_NEWNET)
        try:
            return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            linux.enter(here, linux.CLONE_NEWNET)
    finally:
        os.close(here)
