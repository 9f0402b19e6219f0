"""`make pictures`: generates every picture of the documentation from the code, into docs/pictures/.

    python scripts/pictures.py             all but the recording
    python scripts/pictures.py --demo      including the recording of the demo, which runs for half a minute
    python scripts/pictures.py --check     compare instead of writing; exit code 1 if one is not current
    python scripts/pictures.py --quick     only those that are drawn in a moment: not the one made of hundreds of worlds

The same code makes the same bytes, except for the recording, which shows a real run.
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

ROOT = HERE.parent
FOLDER = ROOT / "docs" / "pictures"
COLUMNS, LINES = 104, 36
DEMO = "demo/failover.py"
LIMIT_S = 240.0
SLOW = {"job-states"}
"""Made of hundreds of simulated worlds, which takes many seconds."""


def drawn(quick: bool) -> dict[str, str]:
    """Every picture that is the same each time, by its name."""
    from pictures_concepts import PICTURES
    from pictures_plan import plan_picture

    drawings = PICTURES | {"plan": plan_picture}
    return {name: draw() for name, draw in drawings.items() if not (quick and name in SLOW)}


def recorded() -> str:
    """The recording of a real run of the demo."""
    from pictures_recording import played, record, svg, text

    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    env |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    code, said = record([sys.executable, DEMO, "--seed", "4"], COLUMNS, LINES, env, LIMIT_S)
    tape = played(said, COLUMNS, LINES)
    if code != 0:
        raise SystemExit(f"the demo ended with {code}:\n{text(tape)}")
    says = "Three nodes run a job; the one that runs it is killed; another takes over; the result is the same."
    return svg(tape, "make demo", says)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--demo", action="store_true")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    stale = 0
    for name, picture in drawn(given.quick).items():
        path = FOLDER / f"{name}.svg"
        if path.exists() and path.read_text() == picture:
            continue
        if given.check:
            stale += 1
            print(f"{path.relative_to(ROOT)} is not current; run: make pictures")
        else:
            path.write_text(picture)
            print(f"wrote {path.relative_to(ROOT)}")
    if given.demo and not given.check:
        os.chdir(ROOT)
        (FOLDER / "demo.svg").write_text(recorded())
        print("wrote docs/pictures/demo.svg")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
