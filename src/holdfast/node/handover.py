"""Replaces the command-line process with the agent's process and passes the effective settings to it.

The agent replaces this process (same pid, same parent, same output), so a supervisor that started `holdfast node`
watches, signals and restarts the agent itself. The settings are passed in an unnamed file that only the agent has open:
a join token must not appear in the arguments or the environment, where other users or the node's own jobs could read
it.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast.node.config import SETTINGS, NodeConfig

MODULE = "holdfast.node"


def become_agent(config: NodeConfig) -> NoReturn:
    """Replace this process with the agent. Only the pid and the open files remain."""
    fields = {name: getattr(config, name) for name in config.__struct_fields__ if name != "home"}
    settings = os.memfd_create("holdfast-settings", 0)
    os.write(settings, msgspec.json.encode(fields))
    os.lseek(settings, 0, os.SEEK_SET)
    environ = {name: value for name, value in os.environ.items() if name != SETTINGS["token"].variable}
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: do not import from the current folder. The home folder is an argument only so that `ps` shows it.
    words = [sys.executable, "-P", "-m", MODULE, str(config.home), str(settings)]
    os.execve(sys.executable, words, environ)


def taken_over(words: list[str]) -> NodeConfig:
    """The settings that `become_agent` passed to the process with these arguments."""
    home, settings = words
    with open(int(settings), "rb") as file:
        fields = msgspec.json.decode(file.read(), type=dict[str, object])
    return msgspec.convert({**fields, "home": Path(home)}, NodeConfig)
