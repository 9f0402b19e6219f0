"""What tests of shipped things share: the wheel, built once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what a build leaves in its tree must reach neither the next one nor this repository."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree / name)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    words += ["--no-build-isolation", "--wheel-dir", str(tree / "dist"), str(tree)]
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    (built,) = (tree / "dist").iterdir()
    return built
