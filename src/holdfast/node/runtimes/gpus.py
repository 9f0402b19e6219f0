"""Which device nodes belong to a GPU that was leased by the name its driver gives it. Reads only; knows no sandbox."""

import errno
import os

DRIVER = "/proc/driver/nvidia/gpus"
_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""Needed to speak with the driver at all; they open no GPU."""


def device_nodes(ids: tuple[str, ...], driver: str = DRIVER, dev: str = "/dev") -> list[str]:
    """The nodes a body needs for these GPUs, and those of no other. OSError where one of them is not there."""
    if not ids:
        return []
    minors = _minors(driver)
    missing = [name for name in ids if name not in minors]
    if missing:
        raise OSError(errno.ENODEV, f"there is no GPU {', '.join(missing)}")
    nodes = [f"{dev}/nvidia{minors[name]}" for name in ids]
    return nodes + [path for name in _SHARED if os.path.exists(path := f"{dev}/{name}")]


def _minors(driver: str) -> dict[str, str]:
    """The driver's own list: the name of each GPU, and the number of its node."""
    found: dict[str, str] = {}
    for slot in sorted(os.listdir(driver)) if os.path.isdir(driver) else []:
        with open(f"{driver}/{slot}/information") as lines:
            facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if facts.get("Device Minor", "").isdigit():
            found[facts.get("GPU UUID", "")] = facts["Device Minor"]
    return found
