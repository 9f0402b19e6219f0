"""Avoids loading modules that our own processes do not need, for a faster start and a smaller agent.

For our own processes only, never for a program that imports the SDK.
"""

import sys


def spare_imports() -> None:
    """Call it before any other import. HTTPX comes with a command line of its own, which imports renderers for tables
    and source code: a fifth of the start time of the agent and of every command. HTTPX works without it if it is not
    installed; this simulates that."""
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
