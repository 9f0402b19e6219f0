"""The Typer application. Imports the module of a command when the command is called.

Knows the table of commands and what all commands have in common, but not what any of them does.
"""

import os
from collections.abc import Iterator, MutableMapping
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from holdfast.cli import error_output, flags
from holdfast.cli.command_table import ABOUT, COMMANDS, OLD_NAMES, front_page

EXAMPLES = "Examples:\n"
"""Precedes the example command lines in a command's docstring; each line is indented."""
HELP = ["-h", "--help"]
AS_WRITTEN = "\b\n"
"""Before a paragraph: keeps its line breaks."""


class Called(MutableMapping[str, Any]):
    """The commands by name. Each is made from its module on first access."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        name = OLD_NAMES.get(name, name)
        if name not in self._made:
            self._made[name] = made(name)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS or name in OLD_NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def made(name: str) -> Any:
    """One command, ready to be called. Raises KeyError if the name is unknown."""
    module = import_module(f"holdfast.cli.commands.{COMMANDS[name].module}")
    scratch = typer.Typer(rich_markup_mode=None)
    module.register(scratch)
    command = get_group(scratch).commands[name]
    _finish(command)
    return command


def _finish(command: Any) -> None:
    """Apply what all commands have in common, also to subcommands."""
    command.context_settings["help_option_names"] = HELP
    command.short_help = (command.help or "").partition("\n")[0]
    command.help = _unfilled(command.help or "")
    for one in command.params:
        if one.param_type_name == "argument":
            _plainly(one)
            continue
        if one.metavar is None and not one.is_flag:
            one.metavar = "N" if one.min is not None else one.opts[-1].lstrip("-").replace("-", "_").upper()
        if one.min is not None:
            one._get_number_range_help_str = partial(_bounds, one)
    where = [place for place, one in enumerate(command.params) if "--url" in one.opts and not one.required]
    if where:
        command.params.insert(where[0], _context_flag())
    lightened(command)
    for one in getattr(command, "commands", {}).values():
        _finish(one)


class Plain:
    """Converts a typed word to the type of its parameter: text, a number, or a list of these.

    Typer itself makes a schema of every parameter for this, with a library that takes longer to load than most
    commands take to run."""

    def __init__(self, kind: type, several: bool) -> None:
        self._kind = kind
        self._several = several

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if self._several else None
        if not self._several:
            return self._one(value, param, ctx)
        return [self._one(one, param, ctx) for one in value]

    def _one(self, word: Any, param: Any, ctx: Any) -> Any:
        try:
            made = self._kind(word)
        except ValueError:
            what = {int: "whole number", float: "number"}.get(self._kind, "valid value")
            raise typer.BadParameter(f"{word!r} is not a {what}.", ctx=ctx, param=param) from None
        least, most = getattr(param, "min", None), getattr(param, "max", None)
        if isinstance(made, int | float) and not (least is None or made >= least) & (most is None or made <= most):
            raise typer.BadParameter(f"{made} is not {_bounds(param)}.", ctx=ctx, param=param)
        return made


def lightened(command: Any) -> None:
    """Let `Plain` convert the parameters. Other types, and Typer versions that work differently, are left alone."""
    kinds: dict[Any, tuple[type, bool]] = {
        str: (str, False), int: (int, False), float: (float, False), bool: (bool, False), list[str]: (str, True),
    }  # fmt: skip
    for one in [*command.params, command.get_help_option(typer.Context(command, help_option_names=HELP))]:
        kind = getattr(getattr(one, "type_descriptor", None), "annotation", None)
        if kind in kinds and getattr(one, "_runtime_param", one) is None:
            one._runtime_param = Plain(*kinds[kind])


def _bounds(one: Any) -> str:
    if one.min is None:
        return f"{one.max} at most"
    return f"{one.min} or more" if one.max is None else f"{one.min} to {one.max}"


def _plainly(argument: Any) -> None:
    """Show an argument as its metavar, in brackets if it is optional."""
    word = argument.metavar or argument.name.upper()
    in_usage = word if argument.required or word.startswith("[") else f"[{word}]"
    argument.get_usage_pieces = lambda ctx: [in_usage]
    argument.get_help_record = lambda ctx: (word.strip("[]"), argument.help or "")


def _context_flag() -> Any:
    """`--context`, for every command that has an optional `--url`."""
    scratch = typer.Typer(add_completion=False, rich_markup_mode=None)
    scratch.command()(_with_context)
    return get_command(scratch).params[0]


def _with_context(
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="Which network; else HOLDFAST_CONTEXT, else `holdfast context use`.",
            callback=lambda value: _chosen(value),
            expose_value=False,
            autocompletion=flags.complete_context,
        ),
    ] = None,
) -> None:
    """Exists for its parameter only; see `_context_flag`."""


def _chosen(name: str | None) -> None:
    """A context named on the command line overrides everything that the environment says about a network."""
    flags.named[:] = [name] if name else []
    if name:
        for variable in ("URL", "ADMIN_TOKEN", "ADMIN_TOKEN_FILE", "CERTIFICATE"):
            os.environ.pop(f"HOLDFAST_{variable}", None)
        os.environ["HOLDFAST_CONTEXT"] = name


def _unfilled(text: str) -> str:
    """Keep the line breaks of the examples."""
    before, found, after = text.partition(EXAMPLES)
    return f"{before}{AS_WRITTEN}{EXAMPLES}{after}" if found and not before.endswith(AS_WRITTEN) else text


class CommandGroup(TyperGroup):
    """The group of all commands. Its help page is the front page."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Called()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        lightened(self)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            # Typer would exit without a message.
            raise error_output.Interrupted(*interruption.args) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(front_page())

    def _main_shell_completion(self, ctx_args: Any, prog_name: str, complete_var: str | None = None) -> None:
        if os.environ.get("_HOLDFAST_COMPLETE"):
            from typer._completion_classes import completion_init

            completion_init()  # Typer does this only if its own completion flags are installed
        super()._main_shell_completion(ctx_args, prog_name, complete_var)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete names and descriptions from the table, so that Tab does not import every module."""
        kept = self.commands
        self.commands = {one.name: TyperCommand(one.name, short_help=one.says) for one in COMMANDS.values()}
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = kept

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)


app = typer.Typer(
    name="holdfast",
    cls=CommandGroup,
    help=ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP},
    add_completion=False,  # `completion` does that
)


def _version(asked: bool) -> None:
    if asked:
        from holdfast.cli.commands.version import line

        typer.echo(line())
        raise typer.Exit


@app.callback()
def _holdfast(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, expose_value=False)] = False,
) -> None:
    """With a callback, Typer makes a group even if it knows no command yet."""
