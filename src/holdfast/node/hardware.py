"""Finds out what this machine has and how busy it is (SPEC N1, N2, H1). Reads only; decides nothing.

Everything here works without a GPU, and anything that cannot be found out is left at its default: a node
with an odd sensor is still a node.
"""

import os
import platform
import socket
from pathlib import Path

import psutil

from holdfast.model import Gpu, Hardware, Resources
from holdfast.model.messages import Load

MIB = 1024 * 1024
DISK_FREE_MIB_MIN = 64
"""Below this not even logs can be kept: the machine is sick."""
MEMORY_OFFERED_PERCENT = 90
DISK_OFFERED_PERCENT = 90
"""The rest is the machine's own: its stability wins over any job (SPEC N4)."""

_CGROUP_MEMORY = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def detect(home: Path) -> Hardware:
    """What this machine has. `home`: the disk that counts is the one it is on."""
    gpus = detect_gpus()
    total = Resources(
        cpu_milli=_cpus() * 1000,
        memory_mib=_memory_bytes() // MIB,
        disk_mib=psutil.disk_usage(str(home)).total // MIB,
        gpus=len(gpus),
    )
    return Hardware(
        arch=platform.machine() or "unknown",
        os=platform.system().lower() or "unknown",
        cpu_model=_cpu_model(),
        hostname=socket.gethostname()[:128],
        total=total,
        gpus=gpus,
        network=_interfaces(),
    )


def offered_by_default(hardware: Hardware, home: Path) -> Resources:
    """What the network may use when the operator says nothing: all but a tenth of memory and free disk."""
    total = hardware.total
    free_mib = psutil.disk_usage(str(home)).free // MIB
    return Resources(
        cpu_milli=total.cpu_milli,
        memory_mib=total.memory_mib * MEMORY_OFFERED_PERCENT // 100,
        disk_mib=free_mib * DISK_OFFERED_PERCENT // 100,
        gpus=total.gpus,
    )


def measure_load(home: Path) -> Load:
    """How busy the machine is, all causes together, since the last measurement."""
    memory = psutil.virtual_memory()
    return Load(
        cpu_permille=max(0, round(psutil.cpu_percent(interval=None) * 10)),
        memory_used_mib=max(0, memory.total - memory.available) // MIB,
        disk_free_mib=psutil.disk_usage(str(home)).free // MIB,
        sick=_sickness(home),
    )


def _sickness(home: Path) -> str:
    probe = home / "probe"
    try:
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as wrong:
        return f"the node's disk cannot be written: {wrong.strerror}"
    free_mib = psutil.disk_usage(str(home)).free // MIB
    if free_mib < DISK_FREE_MIB_MIN:
        return f"the node's disk has {free_mib} MiB left"
    return ""


def detect_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs, where a driver is there. A driver that answers with an error counts as none."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = _words(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            Gpu(
                model=_words(pynvml.nvmlDeviceGetName(handle)),
                memory_mib=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB,
                driver=driver,
            )
            for handle in handles
        )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _words(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return psutil.cpu_count() or 1


def _memory_bytes() -> int:
    """The machine's memory, or the container's where the node lives in one."""
    total = int(psutil.virtual_memory().total)
    for path in _CGROUP_MEMORY:
        try:
            limit = int(Path(path).read_text())
        except (OSError, ValueError):
            continue
        total = min(total, limit)
    return total


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()[:128]
    except OSError:
        pass
    return platform.processor()[:128]


def _interfaces() -> tuple[str, ...]:
    found: list[str] = []
    for name, state in sorted(psutil.net_if_stats().items()):
        if state.isup and "loopback" not in state.flags and name != "lo":
            found.append(f"{name} {state.speed} Mb/s" if state.speed else name)
    return tuple(found[:32])
