"""Finds the device nodes of a GPU by its driver's name for it. Reads only; knows no sandbox."""

import errno
import os

DRIVER = "/proc/driver/nvidia/gpus"
_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""Needed for any communication with the driver; they give access to no GPU."""


def device_nodes(ids: tuple[str, ...], driver: str = DRIVER, dev: str = "/dev") -> list[str]:
    """The device nodes that a body needs for these GPUs only. Raises OSError if one of them does not exist."""
    if not ids:
        return []
    minors = _minors(driver)
    missing = [name for name in ids if name not in minors]
    if missing:
        raise OSError(errno.ENODEV, f"there is no GPU {', '.join(missing)}")
    nodes = [f"{dev}/nvidia{minors[name]}" for name in ids]
    return nodes + [path for name in _SHARED if os.path.exists(path := f"{dev}/{name}")]


def _minors(driver: str) -> dict[str, str]:
    """The driver's list: the name of each GPU, and its minor number."""
    found: dict[str, str] = {}
    for slot in sorted(os.listdir(driver)) if os.path.isdir(driver) else []:
        with open(f"{driver}/{slot}/information") as lines:
            facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if facts.get("Device Minor", "").isdigit():
            found[facts.get("GPU UUID", "")] = facts["Device Minor"]
    return found
