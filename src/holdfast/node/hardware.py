"""Finds out what this machine has, how busy it is and what its sensors say (SPEC N1, N2, H1). Reads only; what is sick
is decided by `health`.

Everything here works without a GPU, and anything that cannot be found out is left at its default: a node
with an odd sensor is still a node.
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
from holdfast.node.health import DiskReading, GpuReading, Readings, Sensor, Watch

MIB = 1024 * 1024
MEMORY_OFFERED_PERCENT = 90
DISK_OFFERED_PERCENT = 90
"""The rest is the machine's own: its stability wins over any job (SPEC N4)."""

SICK_CHARS_MAX = 500
GPU_LIMIT_C = 95
"""Where a card does not say at which heat it slows down."""

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


def measure_load(home: Path, watch: Watch | None = None) -> Load:
    """How busy the machine is, all causes together, since the last measurement; and whether it is sick. `watch`: knows
    what was read before."""
    memory = psutil.virtual_memory()
    readings = read_health(home)
    health = (watch or Watch()).judge(readings, boottime_ms())
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
    """Writes a little, makes sure of it, and reads it back: errors of a disk show no earlier."""
    usage = psutil.disk_usage(str(home))
    state = os.statvfs(home)
    reading = DiskReading(
        read_only=bool(state.f_flag & os.ST_RDONLY),
        free_mib=usage.free // MIB,
        total_mib=usage.total // MIB,
        inodes_free=state.f_favail if state.f_files else None,
    )
    probe = home / "probe"
    said = os.urandom(16) * 256
    try:
        with probe.open("wb") as file:
            file.write(said)
            file.flush()
            os.fsync(file.fileno())
        found = probe.read_bytes()
        probe.unlink()
    except OSError as wrong:
        return replace(reading, trouble=wrong.strerror or "it failed", read_only=wrong.errno == errno.EROFS)
    return reading if found == said else replace(reading, trouble="it gives back other bytes than were written")


def _processor_heat() -> list[Sensor]:
    try:
        found = psutil.sensors_temperatures()
    except (AttributeError, OSError, ValueError):
        return []
    return [
        Sensor(f"{chip} {entry.label}".strip()[:64], int(entry.current), int(entry.critical))
        for chip, entries in sorted(found.items())
        for entry in entries
        # A sensor that shows nonsense has no limit, or one that nothing reaches or everything exceeds.
        if entry.critical and 40 <= entry.critical <= 150 and -40 <= entry.current <= 200
    ]


def read_gpus() -> tuple[tuple[GpuReading, ...] | None, list[Sensor]]:
    """How the GPUs are, and how hot. None: no driver answers."""
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
        """None: this card does not know."""
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
