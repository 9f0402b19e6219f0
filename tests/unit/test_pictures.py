"""The pictures of the documentation: what the code draws, whole, and without anything of the machine that drew them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs" / "pictures"
NAMES = ("demo", "data-way", "job-states", "takeover", "fences", "content", "plan")

pytestmark = [pytest.mark.xdist_group("pictures"), pytest.mark.timeout(330)]


@pytest.fixture(scope="module")
def recording():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import pictures_recording

        yield pictures_recording
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def words(picture: str) -> str:
    return "\n".join("".join(element.itertext()) for element in ElementTree.fromstring(picture).iter() if element.text)


def test_the_pictures_are_what_the_code_draws() -> None:
    """Those that are drawn in a moment; `make release-check CHECKS=pictures` compares all."""
    command = [sys.executable, "scripts/pictures.py", "--check", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_whole_and_says_nothing_of_a_machine(name: str) -> None:
    picture = (FOLDER / f"{name}.svg").read_text()
    root = ElementTree.fromstring(picture)
    assert root.tag.endswith("svg") and root.find("{http://www.w3.org/2000/svg}title") is not None
    assert not re.search(r"(/tmp|/home|/root|/work|/usr)/", words(picture))
    assert "<script" not in picture and "http://" not in picture.replace("http://www.w3.org/2000/svg", "")
    assert len(picture) < 200_000


def test_the_recording_shows_the_kill_the_takeover_and_the_same_result() -> None:
    picture = (FOLDER / "demo.svg").read_text()
    said = words(picture)
    for word in ("KILL -9", "another machine takes over", "attempt 2", "EQUAL: the machine died"):
        assert word in said, word
    before, after = re.findall(r"result, (?:undisturbed|after the kill)\s+([0-9a-f]{64})", re.sub(r"\n", " ", said))
    assert before == after
    assert "@keyframes" in picture and "prefers-reduced-motion" in picture


def test_a_recorded_terminal_plays_what_was_written_on_it(recording) -> None:
    # given a program that writes, waits, and writes over its line
    first, then = "\x1b[1;31m<first> & last\x1b[0m\nstep 1", "\r\x1b[2Kstep 2\n"
    script = (
        "import sys, time\n"
        "assert sys.stdout.isatty()\n"
        f"print({first!r}, end='', flush=True); time.sleep(0.3); print({then!r}, end='', flush=True); sys.exit(3)\n"
    )
    env = {**os.environ, "TERM": "xterm-256color"}

    # when it is recorded, then all that it wrote is there, in the order of its seconds
    code, said = recording.record([sys.executable, "-c", script], 40, 5, env, 60)
    assert code == 3
    assert b"".join(piece for _, piece in said) == f"{first}{then}".replace("\n", "\r\n").encode()
    assert [at for at, _ in said] == sorted(at for at, _ in said)

    # and when it is played as it was written, half a second apart (a busy machine may have read it as one piece)
    tape = recording.played([(0.1, first.replace("\n", "\r\n").encode()), (0.6, then.encode())], 40, 5)

    # then both lines are there at their time, and what was red and bold is
    assert recording.text(tape).splitlines()[:2] == ["<first> & last", "step 2"]
    rows = {"".join(run[0] for run in row.runs).strip(): row for row in tape.rows}
    assert rows["step 1"].until <= rows["step 2"].since < tape.seconds
    assert rows["<first> & last"].runs[0][1:] == (recording.COLOURS["red"], True, False)
    picture = recording.svg(tape, "a title", "what it shows")
    assert "&lt;first&gt; &amp; last" in picture
    ElementTree.fromstring(picture)


def test_a_program_that_does_not_end_is_ended(recording) -> None:
    code, said = recording.record([sys.executable, "-c", "import time; print('on', flush=True); time.sleep(60)"],
                                  20, 3, dict(os.environ), 2.0)  # fmt: skip
    assert code != 0
    assert not said or b"on" in said[0][1]
