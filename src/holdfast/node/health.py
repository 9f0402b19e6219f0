"""Decides whether a machine is sick, from readings of its sensors and disk over time (SPEC H1). Pure: readings and the
time are passed in.

A node that reports itself sick loses its work, so a single odd reading is not enough: heat must persist, and ends only
once the temperature is well below its limit; uncorrectable GPU errors count for an hour after the last one; what is not
measured is not judged. Minor problems are warnings for the machine's own operator.
"""

import msgspec

DISK_FREE_MIB_MIN = 64
"""With less, not even logs can be stored."""
INODES_FREE_MIN = 256
"""An attempt's folder has some dozen files."""
DISK_LOW_PERMILLE = 50
HOT_MS = 60_000
"""Shorter heat is left to the fans."""
COOL_BELOW_C = 10
"""How far below its limit a sensor must be to count as cool again: a card that cools down because its work was taken
away must not get it back at once."""
WARM_BELOW_C = 5
ERRORS_MS = 3_600_000


class Sensor(msgspec.Struct, frozen=True):
    name: str
    celsius: int
    limit: int
    """The temperature at which the hardware throttles or shuts down."""
    gpu: bool = False


class GpuReading(msgspec.Struct, frozen=True):
    name: str
    """`GPU 0`."""
    trouble: str = ""
    """Why it did not answer, as the driver reports it."""
    uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    rows_spent: bool = False
    """A broken memory row could not be replaced because no spare rows are left."""
    rows_wait: bool = False
    """Broken memory rows will be replaced at the next reset."""


class DiskReading(msgspec.Struct, frozen=True):
    trouble: str = ""
    """Why it cannot be written to or read from."""
    read_only: bool = False
    free_mib: int = 0
    total_mib: int = 0
    inodes_free: int | None = None
    """None: this file system allocates inodes on demand."""


class Readings(msgspec.Struct, frozen=True):
    disk: DiskReading
    gpus: tuple[GpuReading, ...] | None = ()
    """None: there is no driver, or it does not answer."""
    sensors: tuple[Sensor, ...] = ()


class Health(msgspec.Struct, frozen=True):
    sick: str = ""
    """Empty, or a description of what is wrong."""
    warnings: tuple[str, ...] = ()


class HealthWatch:
    """Keeps the history that single readings do not show."""

    def __init__(self, gpus: int = 0) -> None:
        """`gpus`: the number of GPUs when the node started; 0 if none is offered, and then none is judged."""
        self._gpus = gpus
        self._hot_since: dict[str, int] = {}
        self._overheated: set[str] = set()
        self._errors: dict[str, int] = {}
        """Uncorrectable errors at the last reading."""
        self._erred_ms: dict[str, int] = {}
        self.readings: Readings | None = None
        """The latest readings."""
        self.health = Health()

    def judge(self, readings: Readings, now_ms: int) -> Health:
        sensors = tuple(sensor for sensor in readings.sensors if self._gpus or not sensor.gpu)
        sick = [*self._disk(readings.disk), *self._cards(readings.gpus, now_ms), *self._heat(sensors, now_ms)]
        self.readings = readings
        self.health = Health("; ".join(sick), tuple(_warnings(readings)))
        return self.health

    def _disk(self, disk: DiskReading) -> list[str]:
        if disk.read_only:
            return ["the node's disk became read-only"]
        if disk.trouble:
            return [f"the node's disk cannot be written: {disk.trouble}"]
        if disk.free_mib < DISK_FREE_MIB_MIN:
            return [f"the node's disk has {disk.free_mib} MiB left"]
        if disk.inodes_free is not None and disk.inodes_free < INODES_FREE_MIN:
            return [f"the node's disk has room for {disk.inodes_free} more files"]
        return []

    def _cards(self, gpus: tuple[GpuReading, ...] | None, now_ms: int) -> list[str]:
        if not self._gpus:
            return []
        if gpus is None:
            return ["the driver of its GPUs no longer answers"]
        sick = [f"{gpu.name} no longer answers: {gpu.trouble}" for gpu in gpus if gpu.trouble]
        if len(gpus) < self._gpus:
            sick.append(f"{self._gpus - len(gpus)} of its {self._gpus} GPUs are gone")
        sick += [f"{gpu.name} has no good rows left for broken memory" for gpu in gpus if gpu.rows_spent]
        for gpu in gpus:
            if gpu.uncorrected is None:
                continue
            # Errors from before the node started are ignored: it cannot know whose work they hit.
            if gpu.uncorrected > self._errors.get(gpu.name, gpu.uncorrected):
                self._erred_ms[gpu.name] = now_ms
            self._errors[gpu.name] = gpu.uncorrected
        for name, at_ms in sorted(self._erred_ms.items()):
            if now_ms - at_ms < ERRORS_MS:
                sick.append(f"{name} had memory errors that could not be corrected")
        return sick

    def _heat(self, sensors: tuple[Sensor, ...], now_ms: int) -> list[str]:
        sick: list[str] = []
        for sensor in sensors:
            if sensor.celsius < sensor.limit - COOL_BELOW_C:
                self._overheated.discard(sensor.name)
            if sensor.celsius < sensor.limit:
                self._hot_since.pop(sensor.name, None)
            elif now_ms - self._hot_since.setdefault(sensor.name, now_ms) >= HOT_MS:
                self._overheated.add(sensor.name)
            if sensor.name in self._overheated:
                sick.append(f"{sensor.name} is too hot: {sensor.celsius} °C, its limit is {sensor.limit} °C")
        return sick


def _warnings(readings: Readings) -> list[str]:
    found: list[str] = []
    disk = readings.disk
    if disk.free_mib * 1000 < disk.total_mib * DISK_LOW_PERMILLE:
        found.append(f"the disk is nearly full: {disk.free_mib} of {disk.total_mib} MiB are free")
    found += [f"{gpu.name} replaces broken memory at its next reset" for gpu in readings.gpus or () if gpu.rows_wait]
    found += [
        f"{sensor.name} is warm: {sensor.celsius} °C, its limit is {sensor.limit} °C"
        for sensor in readings.sensors
        if sensor.celsius >= sensor.limit - WARM_BELOW_C
    ]
    return found
