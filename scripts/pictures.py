"""`make pictures`: every picture of the documentation, from the code, into docs/pictures/.

    python scripts/pictures.py             all but the recording
    python scripts/pictures.py --demo      the recording of the demo as well: it runs it, for half a minute
    python scripts/pictures.py --check     compare instead of writing; exit code 1 if one is not current

The same code makes the same bytes, except for the recording: that is of a real run.
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


def drawn() -> dict[str, str]:
    """Every picture that is the same each time, by its name."""
    from pictures_concepts import PICTURES
    from pictures_plan import plan_picture

    return {name: draw() for name, draw in PICTURES.items()} | {"plan": plan_picture()}


def recorded() -> str:
    """The demo, run for real."""
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
    parser.add_argument("--demo", action="store_true")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    stale = 0
    for name, picture in drawn().items():
        path = FOLDER / f"{name}.svg"
        if path.exists() and path.read_text() == picture:
            continue
        if given.check:
            stale += 1
            print(f"{path.relative_to(ROOT)} is not what the code draws; run: make pictures")
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
