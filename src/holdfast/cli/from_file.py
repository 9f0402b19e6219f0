"""Commands that read the job file if no command is typed: its values become the defaults of the flags."""

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

HELP = frozenset({"-h", "--help"})


class FromFile(TyperCommand):
    leaves_out: frozenset[str] = frozenset()
    """Parameters for which this command ignores the file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and not HELP.intersection(args):
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            if not given.get("argv"):
                args = [*args, *self._filed(ctx, set(given))]
        return super().parse_args(ctx, args)

    def _filed(self, ctx: Any, given: set[str]) -> list[str]:
        """The command in the file, after a `--`. Sets the other values in the file as defaults."""
        from holdfast.cli import job_file
        from holdfast.errors import Misuse

        path = Path(job_file.NAME)
        if not path.exists():
            raise Misuse(
                f"there is no command, and no {job_file.NAME} in this folder",
                hint=f"Give the command after --, or write the file with `holdfast init`: `{ctx.command_path} --help`.",
            )
        said = job_file.read_job_file(path)
        command = said.pop("argv", None)
        if command is None:
            raise Misuse(f"{path} has no command", hint='Add a line such as: command = ["python3", "main.py"]')
        overruled = {name for group in job_file.EITHER if group & given for name in group}
        known = {parameter.name for parameter in self.params}
        ctx.default_map = {name: value for name, value in said.items() if name in known - overruled - self.leaves_out}
        return ["--", *command]
