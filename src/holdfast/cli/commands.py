"""Every command: where it lives, and the one line that `holdfast --help` says of it.

A new command is one line of this table and a module of this room with `register(app)`, which adds it to a Typer
application under the name that stands here. The module is imported when its command is called, and not before: so
this one knows no Typer, and the front page is shown without it. The line is the first of the command's own help; a
test compares them.
"""

from typing import NamedTuple


class Command(NamedTuple):
    name: str
    module: str
    """In holdfast.cli; has `register(app)`."""
    says: str


SECTIONS: dict[str, tuple[Command, ...]] = {
    "Jobs": (
        Command("run", "running", "Run a command somewhere in the network."),
        Command("check", "checking", "Say whether a job would run now, where, and how long it would take."),
        Command("rerun", "running", "Run a job once more, as a new job."),
        Command("jobs", "jobs", "List jobs, newest first."),
        Command("job", "jobs", "Look at one job."),
        Command("logs", "following", "Print a job's output, over all its attempts."),
        Command("results", "results", "Bring a job's files and output here."),
        Command("stop", "jobs", "Stop a job, or all that is left of an array."),
        Command("init", "starting", "Write a job file for this folder."),
        Command("move", "moving", "Move a job to another machine."),
    ),
    "Network": (
        Command("top", "top", "Show the network live: machines, what runs, what waits."),
        Command("nodes", "network", "List the machines of the network."),
        Command("events", "following", "Print what happened in the network, oldest first."),
        Command("token", "network", "Tokens by which nodes may join."),
        Command("context", "contexts", "Work with several networks, by name."),
        Command("doctor", "examining", "Find what is wrong with this machine or the network."),
    ),
    "This machine": (
        Command("up", "serving", "Start an orchestrator here, in the foreground."),
        Command("node", "serving", "Offer this machine to a network, or look after a node."),
        Command("backup", "backing_up", "Copy an orchestrator's data while it runs."),
        Command("completion", "shells", "Let this shell complete commands, flags, ids and names."),
        Command("version", "versions", "Say which version this is."),
        Command("help", "helping", "Show the page of a command, or what exit codes mean."),
    ),
    "Trying things": (
        Command("rehearse", "rehearsing", "Kill machines under a command, and see if it matters."),
        Command("plan", "planning", "Say how long jobs take on nodes that come and go."),
        Command("sim", "network", "Replay one simulated world."),
        Command("network", "neural", "Train and ask neural networks."),
    ),
}
COMMANDS = {command.name: command for section in SECTIONS.values() for command in section}

ABOUT = "Runs work on machines nobody controls, and gets it finished."
USAGE = "Usage: holdfast COMMAND [OPTIONS] [ARGS]..."
OPTIONS = (
    ("-h, --help", "Show this page and exit; after a command, its own."),
    ("--version", "Say which version this is."),
)


def front_page() -> str:
    """What `holdfast --help` shows."""
    lines = [USAGE, "", f"  {ABOUT}"]
    for section, commands in SECTIONS.items():
        lines += ["", f"{section}:", *(f"  {command.name:<11}{command.says}" for command in commands)]
    lines += ["", "Options:", *(f"  {flag:<22}{says}" for flag, says in OPTIONS)]
    return "\n".join(lines) + "\n"
