"""Where the shipped files lie, and an environment that lends packages to what is installed from them."""

import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"


def lend_packages(environment: Path) -> None:
    """Let a new virtual environment find what is installed here, but not this repository: a line in a .pth file adds
    a folder without reading the .pth files in it."""
    (folder,) = environment.glob("lib/python3*/site-packages")
    (folder / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
