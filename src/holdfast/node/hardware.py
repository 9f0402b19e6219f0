"""Detects what this machine has, how busy it is and what its sensors show (SPEC N1, N2, H1). Reads only; `health`
decides what counts as sick.

Everything here works without a GPU, and a value that cannot be read keeps its default: an odd sensor must not keep a
node from working.
"""

import errno
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from holdfast.boottime import boottime_ms
from holdfast.model import Gpu, Hardware, Resources
from holdfast.model.messages import Load
from holdfast.node.health import DiskReading, GpuReading, HealthWatch, Readings, Sensor

MIB = 1024 * 1024
MEMORY_OFFERED_PERCENT = 90
DISK_OFFERED_PERCENT = 75
"""The rest is reserved for the machine itself: its stability comes before any job (SPEC N4). With its output and the
tables of its file system, a job with the default disk takes a fifth more than it asks for (`disk_room`)."""

NOT_OF_THE_DISK = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}
"""Errors of a probe that say nothing about the disk: the process or the machine lacks something for a while."""
SICK_CHARS_MAX = 500
GPU_LIMIT_C = 95
"""Used if a card does not report the temperature at which it throttles."""

_CGROUP_MEMORY = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def detect(home: Path) -> Hardware:
    """What this machine has. `home`: its disk is the one that counts."""
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
    """What the network may use by default: all but a tenth of the memory and a quarter of the free disk."""
    total = hardware.total
    free_mib = psutil.disk_usage(str(home)).free // MIB
    return Resources(
        cpu_milli=total.cpu_milli,
        memory_mib=total.memory_mib * MEMORY_OFFERED_PERCENT // 100,
        disk_mib=free_mib * DISK_OFFERED_PERCENT // 100,
        gpus=total.gpus,
    )


def cache_mib(free_mib: int, offered_mib: int, held_mib: int, mib_max: int) -> int:
    """How large a cache may become that is no job's: what jobs were promised is theirs. Half of the disk that is free
    and not offered, with what the cache holds already, and at most `mib_max`."""
    return min(mib_max, max(0, free_mib - offered_mib) // 2 + held_mib)


def measure_load(home: Path, watch: HealthWatch | None = None) -> Load:
    """How busy the machine is, from all causes, since the last measurement; and whether it is sick. `watch`: holds the
    earlier readings."""
    memory = psutil.virtual_memory()
    readings = read_health(home)
    health = (watch or HealthWatch()).judge(readings, boottime_ms())
    return Load(
        cpu_permille=max(0, round(psutil.cpu_percent(interval=None) * 10)),
        memory_used_mib=max(0, memory.total - memory.available) // MIB,
        disk_free_mib=readings.disk.free_mib,
        sick=health.sick[:SICK_CHARS_MAX],
    )


def read_health(home: Path) -> Readings:
    gpus, hot = read_gpus()
    return Readings(read_disk(home), gpus, (*hot, *_processor_heat()))


def read_disk(home: Path) -> DiskReading:
    """Write a little, sync it, and read it back: disk errors do not show otherwise."""
    usage = psutil.disk_usage(str(home))
    state = os.statvfs(home)
    reading = DiskReading(
        read_only=bool(state.f_flag & os.ST_RDONLY),
        free_mib=usage.free // MIB,
        total_mib=usage.total // MIB,
        inodes_free=state.f_favail if state.f_files else None,
    )
    wrong = _probe(home / "probe")
    if wrong is not None and wrong.errno == errno.EIO:
        wrong = _probe(home / "probe")  # a disk may fail once; one that fails twice in a row is broken
    if wrong is None or wrong.errno in NOT_OF_THE_DISK:
        return reading
    return replace(reading, trouble=wrong.strerror or "it failed", read_only=wrong.errno == errno.EROFS)


def _probe(path: Path) -> OSError | None:
    """What went wrong, if anything."""
    said = os.urandom(16) * 256
    try:
        with path.open("wb") as file:
            file.write(said)
            file.flush()
            os.fsync(file.fileno())
        found = path.read_bytes()
        path.unlink()
    except OSError as wrong:
        return wrong
    return None if found == said else OSError(errno.EILSEQ, "it returns other bytes than were written")


def _processor_heat() -> list[Sensor]:
    try:
        found = psutil.sensors_temperatures()
    except (AttributeError, OSError, ValueError):
        return []
    return [
        Sensor(f"{chip} {entry.label}".strip()[:64], int(entry.current), int(entry.critical))
        for chip, entries in sorted(found.items())
        for entry in entries
        # A faulty sensor reports no limit, or one that is never reached or always exceeded.
        if entry.critical and 40 <= entry.critical <= 150 and -40 <= entry.current <= 200
    ]


def read_gpus() -> tuple[tuple[GpuReading, ...] | None, list[Sensor]]:
    """The state of the GPUs and their temperatures. None: no driver answers."""
    try:
        import pynvml
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, []
    try:
        found = [_read_gpu(pynvml, number) for number in range(pynvml.nvmlDeviceGetCount())]
        return tuple(reading for reading, _ in found), [sensor for _, sensors in found for sensor in sensors]
    except pynvml.NVMLError:
        return None, []
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(driver: Any, number: int) -> tuple[GpuReading, list[Sensor]]:
    name = f"GPU {number}"
    try:
        handle = driver.nvmlDeviceGetHandleByIndex(number)
        celsius = driver.nvmlDeviceGetTemperature(handle, driver.NVML_TEMPERATURE_GPU)
    except driver.NVMLError as wrong:
        return GpuReading(name, trouble=str(wrong)[:200] or type(wrong).__name__), []

    def asked(question: Callable[..., Any], *words: Any) -> Any:
        """None: this card does not support the query."""
        try:
            return question(handle, *words)
        except driver.NVMLError:
            return None

    limit = asked(driver.nvmlDeviceGetTemperatureThreshold, driver.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    errors = asked(
        driver.nvmlDeviceGetTotalEccErrors, driver.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, driver.NVML_VOLATILE_ECC
    )
    rows = asked(driver.nvmlDeviceGetRemappedRows)
    reading = GpuReading(
        name,
        uncorrected=None if errors is None else int(errors),
        rows_wait=bool(rows and rows[2]),
        rows_spent=bool(rows and rows[3]),
    )
    return reading, [Sensor(name, int(celsius), int(limit) if limit else GPU_LIMIT_C, gpu=True)]


def detect_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs, if there is a driver. A driver that answers with an error counts as absent."""
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
    """The machine's memory, or the container's limit if the node runs in one."""
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
