"""What a machine has and what a job needs, in whole units that add and subtract exactly."""

import msgspec

JOBS = "jobs"
"""Feature: takes jobs, that is, other people's code."""
CONTAINER = "container"
"""Feature: runs images on a container engine."""
BUILD = "build"
"""Feature: builds images from Dockerfiles."""
NETWORK = "network"
"""Feature: can let a job use the network."""
PLAIN = "plain"
"""Feature: runs jobs that have no image, with the machine's own programs."""
FEATURES = (BUILD, CONTAINER, JOBS, NETWORK, PLAIN)


class Resources(msgspec.Struct, frozen=True, gc=False, order=False):
    """An amount of divisible resources."""

    cpu_milli: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: int = 0

    def fits_in(self, room: "Resources") -> bool:
        return (
            self.cpu_milli <= room.cpu_milli
            and self.memory_mib <= room.memory_mib
            and self.disk_mib <= room.disk_mib
            and self.gpus <= room.gpus
        )

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu_milli + other.cpu_milli,
            self.memory_mib + other.memory_mib,
            self.disk_mib + other.disk_mib,
            self.gpus + other.gpus,
        )

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu_milli - other.cpu_milli,
            self.memory_mib - other.memory_mib,
            self.disk_mib - other.disk_mib,
            self.gpus - other.gpus,
        )


class Gpu(msgspec.Struct, frozen=True, gc=False):
    model: str
    memory_mib: int
    driver: str = ""
    cuda: str = ""
    """The newest CUDA version that its driver supports."""
    id: str = ""
    """The driver's id of the GPU, by which it is assigned to an attempt."""


class Hardware(msgspec.Struct, frozen=True, gc=False):
    """What a node detected about itself when it started."""

    arch: str = "x86_64"
    os: str = "linux"
    cpu_model: str = ""
    hostname: str = ""
    total: Resources = Resources()
    gpus: tuple[Gpu, ...] = ()
    network: tuple[str, ...] = ()
    """Interfaces with their speed, for people to read (`eth0 1000 Mb/s`)."""


class Need(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, cache_hash=True):
    """What a job needs from the node that runs it. A node that misses any field is not eligible."""

    resources: Resources = Resources(cpu_milli=1000, memory_mib=512, disk_mib=1024)
    arch: str = ""
    """Empty: any."""
    gpu_model: str = ""
    gpu_memory_mib: int = 0
    """Per GPU."""
    gpu_driver_min: str = ""
    """Versions are numbers separated by dots; empty: any."""
    cuda_min: str = ""
    features: tuple[str, ...] = (JOBS,)
    """Features that the node must have, sorted."""
