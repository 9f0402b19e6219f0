"""`make help` tells of everything that can be made."""

import re
import subprocess

import pytest
from shipped import ROOT


@pytest.mark.spec("N12")
def test_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    targets = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)[0].split()
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    told = set(re.findall(r"[a-z][a-z-]*", done.stdout))
    assert [one for one in targets if one not in {*told, "help"}] == []
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
