"""What our own processes do not load, though something they use would: for their start, and for the agent's memory.

For the processes that are ours alone, never for a program that imports the SDK.
"""

import sys


def spare_imports() -> None:
    """Call it before anything is imported. HTTPX comes with a command line of its own, with a renderer of tables and
    of source code behind it: a fifth of the agent's start, and of every command's. It does without it where that is not
    installed, and so it does here."""
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
