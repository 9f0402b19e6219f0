"""Every command: its module, and its line in `holdfast --help`.

A new command needs one row in this table and a module in `cli/commands` with `register(app)`, which adds the command to
a Typer application under the name in the row. The module is imported when its command is called, and not before. This
module does not import Typer, so the front page is shown without it. The line is the first line of the command's own
help; a test compares them.
"""

from typing import NamedTuple


class CommandRow(NamedTuple):
    name: str
    module: str
    """In holdfast.cli.commands; has `register(app)`."""
    says: str


SECTIONS: dict[str, tuple[CommandRow, ...]] = {
    "Jobs": (
        CommandRow("run", "run", "Run a command somewhere in the network."),
        CommandRow("check", "check", "Say whether a job would run now, where, and how long it would take."),
        CommandRow("rerun", "run", "Run a job once more, as a new job."),
        CommandRow("jobs", "jobs", "List jobs, newest first."),
        CommandRow("job", "jobs", "Look at one job."),
        CommandRow("logs", "logs", "Print a job's output, over all its attempts."),
        CommandRow("results", "results", "Fetch a job's files and output."),
        CommandRow("stop", "jobs", "Stop a job, or the unfinished items of an array."),
        CommandRow("init", "init", "Write a job file for this folder."),
        CommandRow("move", "move", "Move a job to another machine."),
    ),
    "Network": (
        CommandRow("top", "top", "Show the network live: machines, what runs, what waits."),
        CommandRow("nodes", "nodes", "List the machines of the network."),
        CommandRow("events", "logs", "Print what happened in the network, oldest first."),
        CommandRow("token", "tokens", "Manage the tokens that nodes join with."),
        CommandRow("access", "tokens", "Manage the tokens that people call the network with."),
        CommandRow("context", "context", "Work with several networks, by name."),
        CommandRow("doctor", "doctor", "Find what is wrong with this machine or the network."),
    ),
    "This machine": (
        CommandRow("up", "serve", "Start an orchestrator here, and with --node a node beside it."),
        CommandRow("down", "serve", "End what `up --node` or `up --detach` started."),
        CommandRow("node", "serve", "Offer this machine to a network, or look after a node."),
        CommandRow("backup", "backup", "Copy an orchestrator's data while it runs."),
        CommandRow("completion", "completion", "Let this shell complete commands, flags, ids and names."),
        CommandRow("version", "version", "Print the version."),
        CommandRow("help", "help", "Show the help of a command, or what exit codes mean."),
    ),
    "Trying things": (
        CommandRow("rehearse", "rehearse", "Kill machines while a command runs, and compare the results."),
        CommandRow("plan", "plan", "Say how long jobs take on nodes that come and go."),
        CommandRow("sim", "nodes", "Replay one simulated world."),
        CommandRow("neural", "neural", "Train and use neural networks."),
    ),
}
COMMANDS = {command.name: command for section in SECTIONS.values() for command in section}
OLD_NAMES = {"network": "neural"}
"""Names from earlier releases: accepted for one more release, and not listed."""

ABOUT = "Runs work on machines nobody controls, and gets it finished."
USAGE = "Usage: holdfast COMMAND [OPTIONS] [ARGS]..."
OPTIONS = (
    ("-h, --help", "Show this page and exit; after a command, its own."),
    ("--version", "Print the version."),
)


def front_page() -> str:
    """What `holdfast --help` shows."""
    lines = [USAGE, "", f"  {ABOUT}"]
    for section, commands in SECTIONS.items():
        lines += ["", f"{section}:", *(f"  {command.name:<11}{command.says}" for command in commands)]
    lines += ["", "Options:", *(f"  {flag:<22}{says}" for flag, says in OPTIONS)]
    return "\n".join(lines) + "\n"
