"""`run`: send a job, show it live, give its verdict. Ctrl-C leaves the job running, and says so."""

import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.flags import LONG_PATIENCE_S, SHORT_PATIENCE_S, TokenFile, Url, connect
from holdfast.cli.following import Printer

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.wire.http import JobView, LogLine


def register(app: typer.Typer) -> None:
    app.command("run", context_settings={"allow_interspersed_args": False})(run)


def run(
    argv: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command and its words.")],
    name: Annotated[str, typer.Option(help="A name for people to read.")] = "",
    cpu: Annotated[str, typer.Option(metavar="CORES", help="Cores: 2, 0.5 or 250m.")] = "1",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory, as 512MiB or 2GiB.")] = "512MiB",
    disk: Annotated[str, typer.Option(metavar="SIZE", help="Scratch disk.")] = "1GiB",
    gpu: Annotated[int, typer.Option(min=0, help="Whole GPUs.")] = 0,
    recovery: Annotated[
        str | None,
        typer.Option(
            "--class",
            help="If its machine dies: restart, resume, or never (must not run twice). [default: restart]",
        ),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="0 (last) to 9 (first).")] = 5,
    time_limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Stop it after this long: 90s, 2h.")
    ] = None,
    queue_limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Give up if no machine is free for this long.")
    ] = None,
    attempts: Annotated[int | None, typer.Option(min=1, help="Failed attempts before it is given up.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the job; repeatable.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's id and return at once.")] = False,
    key: Annotated[
        str | None,
        typer.Option(help="Idempotency key: the same key is the same job, however often it is sent."),
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Run a command somewhere in the network, show its output, and end with its exit code.

    The exit code is the job's own when the job itself failed (137: out of memory, 124: time limit); 75 when
    machines or the network failed it and trying again may help; 65 when it was refused; 69 when nobody
    answers.
    """
    from holdfast.cli.quantities import assignments, cpu_milli, duration_ms, size_mib
    from holdfast.wire.http import JobRequest

    request = JobRequest(
        argv=argv,
        name=name,
        env=assignments(env or []),
        cpu_milli=cpu_milli(cpu),
        memory_mib=size_mib(memory),
        disk_mib=size_mib(disk),
        gpus=gpu,
        recovery=recovery,
        priority=priority,
        time_limit_ms=duration_ms(time_limit) if time_limit else None,
        queue_limit_ms=duration_ms(queue_limit) if queue_limit else None,
        attempts_max=attempts,
        key=key,
    )
    with connect(url, token_file, SHORT_PATIENCE_S) as client:
        job = client.jobs.submit(request)
    if detach:
        typer.echo(job.id)
        return
    with connect(url, token_file, LONG_PATIENCE_S) as client:
        try:
            ended = Watch(client, job).until_ended()
        except KeyboardInterrupt:
            typer.echo(
                f"\n{job.id} goes on without you.\n"
                f"  follow it:  holdfast logs -f {job.id}\n"
                f"  stop it:    holdfast stop {job.id}",
                err=True,
            )
            raise typer.Exit(130) from None
    _conclude(ended)


def _conclude(job: "JobView") -> None:
    from holdfast.cli.show import verdict_line
    from holdfast.errors import verdict_error

    error = verdict_error(job)
    typer.secho(verdict_line(job), err=True, fg="green" if error is None else "red")
    if error is not None:
        raise typer.Exit(error.exit_code)


class Watch:
    """Follows one job: its output and what the platform saw to the screen, the newest of it in a status line."""

    def __init__(self, client: "Client", job: "JobView") -> None:
        self._client = client
        self._job = job.id
        self._news: SimpleQueue[LogLine | BaseException | None] = SimpleQueue()
        self._printer = Printer()
        self._status = StatusLine(job.id)

    def until_ended(self) -> "JobView":
        threading.Thread(target=self._read, daemon=True).start()
        self._status.say("sent")
        try:
            while True:
                try:
                    news = self._news.get(timeout=0.2)
                except Empty:
                    self._status.draw(self._printer.at_line_start)
                    continue
                if news is None:
                    return self._client.jobs.wait(self._job, check=False)
                if isinstance(news, BaseException):
                    raise news
                self._status.erase()
                self._printer.put(news)
                if news.stream == "platform":
                    self._status.say(news.text)
                self._status.draw(self._printer.at_line_start)
        finally:
            self._status.erase()

    def _read(self) -> None:
        try:
            for line in self._client.jobs.logs(self._job, follow=True):
                self._news.put(line)
            self._news.put(None)
        except BaseException as error:
            self._news.put(error)


class StatusLine:
    """One line at the bottom of a terminal; nothing where there is no terminal."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._since = time.monotonic()
        self._text = ""
        self._shown = False
        self._live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        self._text = text

    def erase(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False

    def draw(self, at_line_start: bool) -> None:
        if not self._live or not at_line_start:
            return
        import shutil

        from holdfast.cli.show import clean

        line = f"{self._job}  {time.monotonic() - self._since:5.1f} s  {clean(self._text)}"
        sys.stderr.write("\r\x1b[K\x1b[2m" + line[: shutil.get_terminal_size().columns - 1] + "\x1b[0m")
        sys.stderr.flush()
        self._shown = True
