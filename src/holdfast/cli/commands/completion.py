"""`completion`: lets a shell complete what is typed after `holdfast`. Writes one file, and the line that reads it.

`completion_values` and the flags define what is completed; this module only connects a shell to them. An error during
completion writes nothing into the prompt.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.flags import one_of

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = {
    "bash": """\
# Lets bash complete what is typed after holdfast. Written by: holdfast completion bash
_holdfast_completion() {
    local IFS=$'\\n'
    local found=$(_HOLDFAST_COMPLETE=complete_bash COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD $1 2>/dev/null)
    COMPREPLY=( $found )
}
complete -o default -F _holdfast_completion holdfast
""",
    "zsh": """\
# Lets zsh complete what is typed after holdfast. Written by: holdfast completion zsh
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_holdfast_completion() {
    eval $(_TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _HOLDFAST_COMPLETE=complete_zsh holdfast 2>/dev/null)
}
compdef _holdfast_completion holdfast
""",
    "fish": """\
# Lets fish complete what is typed after holdfast. Written by: holdfast completion fish
function __holdfast_completion
    set -lx _HOLDFAST_COMPLETE complete_fish
    set -lx _TYPER_COMPLETE_FISH_ACTION get-args
    set -lx _TYPER_COMPLETE_ARGS (commandline -cp)
    set -l found (holdfast 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command holdfast --no-files --arguments '(__holdfast_completion)'
""",
}
MARK = "# completion of holdfast"
"""Ends the line in a shell's own file, which has at most one such line."""


def register(app: typer.Typer) -> None:
    app.command("completion")(completion)


def completion(
    shell: Annotated[
        str | None,
        typer.Argument(
            metavar="[SHELL]", help="bash, zsh or fish; else the current shell.", autocompletion=one_of(*SCRIPTS)
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print what it would write, and write nothing.")] = False,
) -> None:
    """Let this shell complete commands, flags, ids and names.

    Writes a file of its own and, for bash and zsh, a line into .bashrc or .zshrc that reads it; prints what it did.
    Ids and names come from the network in use, if it answers quickly.

    Examples:
      holdfast completion
      holdfast completion zsh
      holdfast completion bash --show
    """
    from holdfast.errors import Misuse

    name = shell or _typed_in()
    if name not in SCRIPTS:
        known = ", ".join(SCRIPTS)
        said = f"there is no completion for {shell!r}" if shell else "it is not known which shell this is"
        raise Misuse(f"{said}; there is one for {known}", hint="Name it: holdfast completion bash")
    if show:
        typer.echo(SCRIPTS[name], nl=False)
        return
    file, rc = places(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SCRIPTS[name])
    typer.echo(f"wrote {file}")
    if rc is not None:
        typer.echo(f"{rc} now reads it" if _read_by(rc, file) else f"{rc} reads it already")
    typer.echo(f"New {name} shells complete what follows `holdfast`; this one does after:\n  . {_quoted(file)}")


def places(shell: str) -> "tuple[Path, Path | None]":
    """The file to write, and the shell's own file that must read it; None if the shell finds it by itself."""
    import os
    from pathlib import Path

    from holdfast.errors import Misuse

    try:
        home = Path.home()
    except RuntimeError:
        raise Misuse(
            "this user has no home folder, where a shell looks for completions",
            hint="Set HOME; or print it with --show, and put it where the shell reads it.",
        ) from None
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return config / "fish" / "completions" / "holdfast.fish", None
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    rc = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    return data / "holdfast" / f"completion.{shell}", rc


def _read_by(rc: "Path", file: "Path") -> bool:
    """Make the shell's own file read ours. False if it does already. The rest of the file stays as it is."""
    line = f"[ -f {_quoted(file)} ] && . {_quoted(file)}  {MARK}"
    before = rc.read_bytes().decode("utf-8", "surrogateescape") if rc.exists() else ""
    lines = before.splitlines()
    if line in lines:
        return False
    if any(one.endswith(MARK) for one in lines):  # it reads a file in another place
        kept = "".join(one for one in before.splitlines(keepends=True) if not one.rstrip("\n").endswith(MARK))
        _replace(rc, f"{kept}{_break(kept)}{line}\n".encode("utf-8", "surrogateescape"))
    else:
        # Appended, so that nothing in the file is lost, whatever happens meanwhile.
        with rc.open("ab") as opened:
            opened.write(f"{_break(before)}{line}\n".encode("utf-8", "surrogateescape"))
    return True


def _break(before: str) -> str:
    return "" if not before or before.endswith("\n") else "\n"


def _replace(rc: "Path", content: bytes) -> None:
    """Replace the file whole or not at all: the disk may be full. A link stays a link, and the mode stays."""
    from holdfast.durable import durable_write

    place = rc.resolve()
    durable_write(place, content, keep_mode=True, draft=place.with_name(f"{place.name}.holdfast-new"))


def _quoted(file: "Path") -> str:
    import shlex

    return shlex.quote(str(file))


def _typed_in() -> str:
    """The nearest shell among the parent processes; if none is found, the user's login shell."""
    import os
    from pathlib import Path

    process = os.getppid()
    try:
        while process > 1:
            name = Path(f"/proc/{process}/comm").read_text().strip().lstrip("-")
            if name in SCRIPTS:
                return name
            # The name may hold spaces and brackets; the state and the parent follow its last bracket.
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass  # there is no /proc, or the process has ended
    return Path(os.environ.get("SHELL", "")).name
