"""Makes small Python packages for tests: wheels in a folder that pip uses instead of an index."""

import base64
import hashlib
import os
import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, needs: str = "", padding: int = 0) -> Path:
    """Write a wheel with a module that holds its version, and a command of its name that prints it.

    `needs`: another package that it requires; `padding`: bytes that cannot be compressed.
    """
    info = f"{name}-{version}.dist-info"
    wants = f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        f"{name}.py": f"VERSION = {version!r}\n\n\ndef main():\n    print({name!r}, VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wants}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}={name}:main\n",
    }
    if padding:
        files[f"{name}_data.bin"] = os.urandom(padding // 2).hex()
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def offline_pip(wheels: Path) -> dict[str, str]:
    """The environment variables of a node whose pip finds packages only in this folder."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
