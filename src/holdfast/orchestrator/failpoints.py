"""Places where the process can be made to die, so that tests can show that dying there loses nothing (SPEC J14).

`HOLDFAST_FAILPOINT=name[:nth]` in the environment makes the nth visit (default: the first) to `failpoint("name")`
end the process with SIGKILL, as a power cut would. Without it a fail point is one comparison.

The names live only in the calls; `names()` reads them from the source, so a list cannot fall behind the code.
"""

import ast
import os
import signal
from pathlib import Path

ENVIRONMENT = "HOLDFAST_FAILPOINT"


def _parse(order: str | None) -> tuple[str, int] | None:
    if not order:
        return None
    name, _, nth = order.partition(":")
    return name, int(nth) if nth.isdigit() else 1


_armed: tuple[str, int] | None = None
_visits = 0


def arm(order: str | None) -> None:
    """Set the fail point as the environment names it: `name[:nth]`, or None for none."""
    global _armed, _visits
    _armed, _visits = _parse(order), 0


arm(os.environ.get(ENVIRONMENT))


def failpoint(name: str) -> None:
    """Die here if the environment requests it."""
    if _armed is None or _armed[0] != name:
        return
    global _visits
    _visits += 1
    if _visits == _armed[1]:
        os.kill(os.getpid(), signal.SIGKILL)


def names(folder: Path | None = None) -> list[str]:
    """Every fail point of the orchestrator, read from its source, sorted."""
    found: set[str] = set()
    for source in sorted((folder or Path(__file__).parent).rglob("*.py")):
        for place in ast.walk(ast.parse(source.read_text())):
            match place:
                case ast.Call(func=ast.Name(id="failpoint"), args=[ast.Constant(value=str(name))]):
                    found.add(name)
                case _:
                    pass
    return sorted(found)
