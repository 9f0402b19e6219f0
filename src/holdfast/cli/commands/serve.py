"""`up`, `down` and `node`: the commands that serve, and the one that ends what `up` started."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.commands import node_operator
from holdfast.cli.flags import Json, NodeArg, TokenFile, Url, connect, one_of

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from holdfast.node.config import NodeConfig

PUBLIC_USES, PUBLIC_TTL_MS = 10, 86_400_000
"""Of the join line that `up --public` prints."""

node_group = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    app.command("up")(up)
    app.command("down")(down)
    node_operator.register(node_group)
    app.add_typer(node_group, name="node")


WithNode = Annotated[
    bool,
    typer.Option("--node", help="Also offer this machine: a node runs beside it, restarted if it ends."),
]
Public = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Serve other machines, which know this one as HOST: all ports, with TLS."),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Return when it is up, and leave it running; `holdfast down` ends it.")
]
HttpAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address for users. TLS except on loopback. [default: 127.0.0.1:7420]"),
]
NodesAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address for nodes. TLS except on loopback. [default: 127.0.0.1:7421]"),
]
FilesAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address for nodes' files; else the next port.")
]
DataDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where it keeps its data; else HOLDFAST_HOME/orchestrator.")
]


def up(
    with_node: WithNode = False,
    public: Public = None,
    detach: Detach = False,
    data_dir: DataDir = None,
    http: HttpAddress = None,
    listen: NodesAddress = None,
    files: FilesAddress = None,
    blobs: Annotated[
        str | None, typer.Option(metavar="URL", help="s3://BUCKET[/PREFIX] for files; else a folder in DIR.")
    ] = None,
    s3_inputs: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="s3://BUCKET[/PREFIX] that every job may read inputs from; repeatable."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="sqlite:///FILE or postgresql+psycopg://…; else a file in DIR.")
    ] = None,
    open_join: Annotated[bool, typer.Option("--open", help="Let anyone join, without a token.")] = False,
    preset: Annotated[
        str,
        typer.Option(
            help="Timing for a kind of network: lan, wan or test.", autocompletion=one_of("lan", "wan", "test")
        ),
    ] = "lan",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="A limit on connections, requests or new machines, 0 for none; repeatable."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=DURATION",
            help="How long something is kept, such as jobs=90d: files, jobs, journal, logs, nodes, tokens; repeatable.",
        ),
    ] = None,
) -> None:
    """Start an orchestrator here, and with --node a node beside it.

    Stays in the foreground unless --detach is given. Ctrl-C ends it; jobs on other nodes go on. Commands on this
    machine find it by themselves.

    Examples:
      holdfast up --node
      holdfast up --node --public holdfast.example --detach
      holdfast up --http 0.0.0.0:7420 --listen 0.0.0.0:7421
      holdfast up --blobs s3://bucket/holdfast --preset wan
    """
    import threading
    from pathlib import Path

    from holdfast.orchestrator.config import JOIN_LIMITS, OrchestratorConfig, default_data
    from holdfast.orchestrator.connection_limits import read_limits
    from holdfast.orchestrator.serve import run_orchestrator

    data = Path(data_dir).expanduser().absolute() if data_dir else default_data()
    limits, joins = read_limits(tuple(limit or ()), JOIN_LIMITS)
    if (with_node or detach) and SUPERVISED not in os.environ:
        raise typer.Exit(_supervised(data, with_node=with_node, public=public or "", detach=detach))
    anywhere = "0.0.0.0" if public else "127.0.0.1"
    http, listen = http or f"{anywhere}:7420", listen or f"{anywhere}:7421"
    config = OrchestratorConfig(
        data=data,
        store=store or "",
        http=http,
        nodes=listen,
        files=files or "",
        blobs=blobs or "",
        s3_inputs=tuple(s3_inputs or ()),
        open_join=open_join,
        preset=preset,
        limits=limits,
        joins=joins,
        keep=tuple(keep or ()),
    )
    if SUPERVISED not in os.environ:
        threading.Thread(target=_announce, args=(data, public or "", listen), daemon=True).start()
    raise typer.Exit(run_orchestrator(config))


SUPERVISED = "HOLDFAST_SUPERVISED"
"""Set for an orchestrator that a supervisor started."""
DETACHED = "HOLDFAST_DETACHED"
"""Set for a supervisor that runs in the background."""


def _supervised(data: "Path", *, with_node: bool, public: str, detach: bool) -> int:
    from holdfast.cli.supervisor import Supervisor, detached

    if detach and DETACHED not in os.environ:
        os.environ[DETACHED] = "1"
        process, log = detached(sys.argv[1:], data)
        return _until_up(process, log)
    os.environ[SUPERVISED] = "1"

    def say(line: str) -> None:
        typer.echo(f"holdfast up: {line}", err=True)

    def serves(endpoint: dict[str, Any]) -> None:
        del os.environ[SUPERVISED]
        _say_up(data, endpoint, public, many=bool(public), with_node=with_node)
        print(UP, flush=True)

    from holdfast.orchestrator.config import default_data

    home = "" if data == default_data() else f"{data}-node"
    return Supervisor(data, sys.argv[1:], node_home=home, with_node=with_node, say=say).run(serves)


SAYS_UP, UP = "Holdfast is up: ", "-- up"
"""How a supervisor's announcement begins, and its last line."""


def _until_up(process: "subprocess.Popen[bytes]", log: "Path") -> int:
    """Wait until a supervisor in the background is up, and show what it said; returns the exit code."""
    import time

    while True:
        code = process.poll()
        said = log.read_text(errors="replace")
        if UP in said.splitlines():
            told = said[said.index(SAYS_UP) :].splitlines()
            typer.echo("\n".join(line for line in told if not line.startswith(("{", UP))))
            typer.echo(f"It goes on in the background; its log: {log}\nEnd it with: holdfast down")
            return 0
        if code is not None:
            typer.echo(said, err=True)
            return code or 1
        time.sleep(0.05)


def down(
    now: Annotated[bool, typer.Option("--now", help="Do not let running work finish: it runs again later.")] = False,
    data_dir: DataDir = None,
) -> None:
    """End what `up --node` or `up --detach` started.

    The node of this machine is drained first: what runs may finish within its grace. Then both processes end. Nothing
    is deleted: the next `holdfast up` continues with the same jobs, results and settings.

    Examples:
      holdfast down
      holdfast down --now
    """
    from pathlib import Path

    from holdfast.cli.supervisor import end
    from holdfast.orchestrator.config import default_data

    data = Path(data_dir).expanduser().absolute() if data_dir else default_data()
    if end(data, now=now, say=lambda line: typer.echo(f"-- {line}", err=True)):
        typer.echo(f"Holdfast is down; its data stays in {data}")
    else:
        typer.echo(f"nothing that `holdfast up --node` or --detach started runs with {data}")


def _announce(data: "Path", public: str, listen: str) -> None:
    """Once this process serves, print where, and how a node joins."""
    import logging
    import socket
    import time

    import msgspec

    # This process's log is the orchestrator's; its requests to itself are not logged.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    path = data / "endpoint.json"
    while True:
        try:
            endpoint = msgspec.json.decode(path.read_bytes())
            if endpoint["pid"] == os.getpid():
                break
        except (OSError, msgspec.DecodeError):
            # Not written yet: it appears when the first request can be served, or the process ends before.
            pass
        time.sleep(0.05)
    host = socket.gethostname() if listen.startswith(("0.0.0.0:", "[::]:")) else ""
    _say_up(data, endpoint, public or host, many=bool(public))


def _say_up(data: "Path", endpoint: dict[str, Any], host: str, *, many: bool, with_node: bool = False) -> None:
    """Print where it serves, and how a node joins. `host`: how other machines know this one; `many`: the join line is
    for several machines."""
    from holdfast.client import Client
    from holdfast.errors import HoldfastError
    from holdfast.identity.tokens import invitation

    nodes = str(endpoint["nodes"])
    if host:
        nodes = f"{host}:{nodes.rpartition(':')[2]}"
    uses = PUBLIC_USES if many else 1
    join = f"holdfast node --orchestrator {nodes}"
    if endpoint["open_join"]:
        join += f" --token {invitation(endpoint['pin']).text}" if endpoint["pin"] else ""
    elif with_node and not host:
        join = ""
    elif not sys.stdout.isatty():
        # The output goes to a journal or a file, and anyone who reads that could join.
        asked = f" --uses {uses}" if many else ""
        join += f" --token TOKEN\nwith a token made here by:\n  holdfast token new{asked}"
    else:
        try:
            token = (data / endpoint["token_file"]).read_text().strip()
            with Client(endpoint["url"], token, certificate=endpoint["certificate"]) as client:
                join += f" --token {client.tokens.create(uses=uses, ttl_ms=PUBLIC_TTL_MS, note='made by up').token}"
        except (HoldfastError, OSError) as error:
            typer.echo(f"no join token could be made: {error}", err=True)
    used = _known_as_local(data)
    aim = "" if used == "local" else " --context local"
    here = ", and this machine is its node" if with_node else ""
    typer.echo(f"{SAYS_UP}{endpoint['url']}{here}")
    if join:
        typer.echo(f"Join {f'up to {uses} machines within 24 h' if many else 'a machine'} with:\n  {join}")
        if not endpoint["open_join"]:
            typer.echo("More machines: holdfast token new --uses N")
    typer.echo(f"Send work with:\n  holdfast run{aim} --no-folder -- echo hello")
    if aim:
        typer.echo(f"Commands go to the context {used}; to have them come here:\n  holdfast context use local")


def _known_as_local(data: "Path") -> str:
    """Let the commands of this machine find this orchestrator as `local`; returns the context in use."""
    from holdfast.client import contexts
    from holdfast.client.endpoint import home
    from holdfast.errors import HoldfastError

    try:
        # In its usual place it is found without an entry; an entry would point elsewhere.
        folder = "" if data == (home() / "orchestrator").absolute() else str(data)
        known = contexts.read(home())
        if known.get(contexts.LOCAL).folder != folder:
            with contexts.changing(home()) as known:
                known.contexts.pop(contexts.LOCAL, None)
                if folder:
                    known.contexts[contexts.LOCAL] = contexts.Context(folder=folder)
        return os.environ.get("HOLDFAST_CONTEXT") or known.current or contexts.LOCAL
    except (HoldfastError, OSError) as error:
        typer.echo(f"the commands of this machine cannot find it as `local`: {error}", err=True)
        return contexts.LOCAL


@node_group.callback(invoke_without_command=True)
def node(
    context: typer.Context,
    orchestrator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to join; else ORCHESTRATOR_ADDRESS.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="The join token; else HOLDFAST_TOKEN, which others on this machine cannot see.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people to read.")] = None,
    site: Annotated[str | None, typer.Option(help="Failure domain: machines that fail together.")] = None,
    home: Annotated[str | None, typer.Option(metavar="DIR", help="Where it keeps its key and its work.")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A TOML file with these settings.")] = None,
    cpu: Annotated[str | None, typer.Option(metavar="CORES", help="Cores to offer; else all.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory to offer; else all.")] = None,
    disk: Annotated[str | None, typer.Option(metavar="SIZE", help="Disk to offer; else what is free.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to offer; else all.")] = None,
    uuid: Annotated[str | None, typer.Option(help="Its identity; else PNODE_UUID, else made once and kept.")] = None,
    port: Annotated[int | None, typer.Option(help="Loopback port of its local status; else PNODE_PORT.")] = None,
    s3_bucket: Annotated[str | None, typer.Option(help="The object store's bucket; else S3_BUCKET.")] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="SOCKET", help="Container engine; else the usual one; `none`: no images.")
    ] = None,
    private_inputs: Annotated[
        bool, typer.Option("--private-inputs", help="Jobs may fetch from addresses inside this machine's network.")
    ] = False,
    no_builds: Annotated[bool, typer.Option("--no-builds", help="No image is built here for a job.")] = False,
    no_network: Annotated[
        bool, typer.Option("--no-network", help="No job may use the network, even if it asks for it.")
    ] = False,
    hours: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WINDOW", help="When it hosts jobs, such as 'Mon-Fri 19:00-07:00'; repeatable; else always."
        ),
    ] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time for running work to finish when the node leaves.")
    ] = None,
    unsafe_process_runtime: Annotated[
        bool, typer.Option("--unsafe-process-runtime", help="Run jobs with NO isolation where no sandbox works.")
    ] = False,
) -> None:
    """Offer this machine to a network, or look after a node.

    Without a command it joins, and hosts jobs until Ctrl-C or SIGTERM. Flags override the environment, and the
    environment overrides the file. `show` and `drain` are for the network's operator, the others for the operator of
    this machine.

    Examples:
      holdfast node --orchestrator holdfast.example:7421 --token hf1_…
      holdfast node --name attic --cpu 2 --memory 4GiB
      holdfast node status
    """
    if context.invoked_subcommand is not None:
        return
    from holdfast.quantities import cpu_milli, duration_ms, size_mib

    flags: dict[str, object | None] = {
        "orchestrator": orchestrator,
        "token": token,
        "name": name,
        "site": site,
        "home": home,
        "cpu_milli": cpu_milli(cpu) if cpu else None,
        "memory_mib": size_mib(memory) if memory else None,
        "disk_mib": size_mib(disk) if disk else None,
        "gpus": gpus,
        "uuid": uuid,
        "port": port,
        "s3_bucket": s3_bucket,
        "engine": engine,
        "private_inputs": private_inputs or None,
        "builds": False if no_builds else None,
        "network": False if no_network else None,
        "hours": "; ".join(hours) if hours else None,
        "grace_ms": duration_ms(grace) if grace else None,
        "unsafe_process_runtime": unsafe_process_runtime or None,
    }
    serve_node(flags, config)


def serve_node(flags: dict[str, object | None], config: str | None) -> None:
    """Become a node, until it leaves. Does not return; raises if its settings are wrong."""
    from pathlib import Path

    from holdfast.client.endpoint import home
    from holdfast.node.config import load_config
    from holdfast.node.handover import become_agent

    usual = home() / "node"
    settings = load_config(flags, {"HOLDFAST_NODE_HOME": str(usual), **os.environ}, Path(config) if config else None)
    if sys.stderr.isatty():
        _welcome(settings, usual)
    become_agent(settings)


def _welcome(settings: "NodeConfig", usual: "Path") -> None:
    """Print what a node operator wants to know first: which network, how to look at the node, how to end it."""
    import shlex

    from holdfast.quantities import spoken_ms

    its = "" if settings.home == usual.absolute() else f" --home {shlex.quote(str(settings.home))}"
    grace = f"what runs may finish within {spoken_ms(settings.grace_ms)}" if settings.grace_ms else "what runs is moved"
    typer.echo(f"This machine offers itself to {settings.orchestrator}, from `session … established` on.", err=True)
    typer.echo(f"Look at it from another terminal: holdfast node status{its} (or pause, resume, offer)", err=True)
    typer.echo(f"Ctrl-C ends it: {grace}; a second one ends it at once.", err=True)


@node_group.command("show")
def show_node(node: NodeArg, json: Json = False, url: Url = None, token_file: TokenFile = None) -> None:
    """Show a node: its state, what it offers, what it holds.

    Also shows the cause of its state, and what happened to it.

    Examples:
      holdfast node show attic
      holdfast node show node_8c --json
    """
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render import nodes as render_nodes

    with connect(url, token_file) as client:
        view = client.nodes.get(node)
    render_jobs.print_json(view) if json else render_nodes.node(view)


@node_group.command("drain")
def drain_node(
    node: NodeArg,
    off: Annotated[bool, typer.Option("--off", help="Take it back into service.")] = False,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Give a node no new work, and move its work elsewhere.

    Examples:
      holdfast node drain attic
      holdfast node drain attic --off
    """
    from holdfast.cli.render import jobs as render_jobs

    with connect(url, token_file) as client:
        view = client.nodes.drain(node, on=not off)
    if json:
        render_jobs.print_json(view)
        return
    from shlex import quote

    from holdfast.cleaning import clean
    from holdfast.quantities import counted

    named = clean(view.name) or view.id
    if off and view.draining:
        typer.echo(f"{named} is no longer drained, but gets no work yet: {clean(view.draining_because)}")
    elif off:
        typer.echo(f"{named} is back in service")
    elif view.attempts:
        typer.echo(
            f"{named} is draining: it gets nothing new, and still holds {counted(len(view.attempts), 'attempt')}"
        )
        typer.echo(f"`holdfast node show {quote(node)}` says how far it is; --off takes it back", err=True)
    else:
        back = f"holdfast node drain {quote(node)} --off"  # as it was typed: several may have the same name
        typer.echo(f"{named} is drained: it holds nothing, and gets nothing until `{back}`")
