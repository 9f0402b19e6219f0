"""From the command line to the agent: the settings that count, handed to a process that never knew a command line.

The agent takes this process's place (same pid, same parent, same output), so whoever started `holdfast node` watches,
signals and restarts the agent itself. What it needs to know lies in an unnamed file that only it has open: a join
token stands neither in its arguments nor in its environment, where others on the machine or its own jobs could
read it.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast.node.config import SETTINGS, NodeConfig

MODULE = "holdfast.node"


def become_agent(config: NodeConfig) -> NoReturn:
    """Be the agent from here on. Nothing of this process is left but its pid and what it has open."""
    fields = {name: getattr(config, name) for name in config.__struct_fields__ if name != "home"}
    settings = os.memfd_create("holdfast-settings", 0)
    os.write(settings, msgspec.json.encode(fields))
    os.lseek(settings, 0, os.SEEK_SET)
    environ = {name: value for name, value in os.environ.items() if name != SETTINGS["token"].variable}
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: what lies in the current folder is not the program. The home is there for whoever reads `ps`.
    words = [sys.executable, "-P", "-m", MODULE, str(config.home), str(settings)]
    os.execve(sys.executable, words, environ)


def taken_over(words: list[str]) -> NodeConfig:
    """The settings that `become_agent` handed to the process with these arguments."""
    home, settings = words
    with open(int(settings), "rb") as file:
        fields = msgspec.json.decode(file.read(), type=dict[str, object])
    return msgspec.convert({**fields, "home": Path(home)}, NodeConfig)
