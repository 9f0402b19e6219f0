"""Avoids loading modules that our own processes do not need, for a faster start and a smaller agent.

For our own processes only, never for a program that imports the SDK.
"""

import sys


def spare_imports() -> None:
    """Call this before any other import. HTTPX comes with its own command line, which imports renderers for tables and
    source code: a fifth of the start time of the agent and of every command. HTTPX works if that command line is not
    installed; this function simulates that."""
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
