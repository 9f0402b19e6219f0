"""`network`: neural networks on this machine: validate, show, train-local, eval, generate, export.

Works without an orchestrator. NumPy and what reads files are imported only when a command runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.flags import Json

if TYPE_CHECKING:
    from holdfast.neural import Metrics, Network

group = typer.Typer(
    help="Train and ask neural networks.\n\nExamples:\n  holdfast network show net.yaml\n"
    "  holdfast network train-local net.yaml --data digits --weights net.weights",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FileArg = Annotated[str, typer.Argument(metavar="FILE", help="The network's description, in YAML.")]
Backend = Annotated[str, typer.Option(metavar="NAME", help="numpy, torch or cuda: the bits are the same.")]
Weights = Annotated[str, typer.Option(metavar="FILE", help="The checkpoint that training wrote.")]
DataFlag = Annotated[
    str, typer.Option("--data", metavar="SOURCE", help="digits, an .npz file of arrays, or a text file.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="network")


@contextmanager
def told() -> Iterator[None]:
    """Errors of the neural room in the words of the command line."""
    try:
        from holdfast.neural.refusals import NeuralError
    except ImportError as missing:
        from holdfast.errors import Misconfigured

        raise Misconfigured(
            f"networks need {missing.name or 'NumPy'}, which is not installed",
            hint="pip install 'holdfast[neural]'", code="missing_part",
        ) from None  # fmt: skip
    try:
        yield
    except NeuralError as error:
        from holdfast.errors import Misconfigured

        raise Misconfigured(error.says, hint=error.hint, code=error.code) from None


def _network(file: str, backend: str = "numpy", weights: str | None = None, profile: str | None = None) -> "Network":
    from holdfast.neural import Network

    network = Network.from_yaml(file, backend, profile)
    if weights:
        network.load(weights)
    return network


def _graph(file: str) -> Any:
    from holdfast.neural.network import read_graph

    return read_graph(file)


@group.command("validate")
def validate(file: FileArg, json: Json = False) -> None:
    """Check a network's description, and point at what is wrong.

    Examples:
      holdfast network validate net.yaml
      holdfast network validate net.yaml --json
    """
    with told():
        graph = _graph(file)
    if json:
        _print_json({"name": graph.name, "nodes": len(graph.nodes), "parameters": graph.parameter_count,
                     "stages": len(graph.stages), "digest": graph.digest})  # fmt: skip
        return
    typer.echo(
        f"{file} is in order: {graph.name}, {len(graph.nodes)} nodes, {graph.parameter_count:,} parameters, "
        f"{len(graph.stages)} stage{'s' * (len(graph.stages) != 1)}"
    )


@group.command("show")
def show_network(file: FileArg, json: Json = False) -> None:
    """Show a network: its graph, shapes, parameters, work and stages.

    Examples:
      holdfast network show net.yaml
      holdfast network show net.yaml --json
    """
    with told():
        graph = _graph(file)
        from holdfast.neural.summary import summary, table

        found = summary(graph)
    _print_json(found) if json else typer.echo(table(found))


@group.command("train-local")
def train_local(
    file: FileArg,
    data: DataFlag,
    steps: Annotated[int, typer.Option(min=1, help="How many steps more.")] = 500,
    until: Annotated[
        int | None, typer.Option(metavar="STEP", min=1, help="Up to this step, wherever it stands; instead of --steps.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where the checkpoint goes, every half minute and at the end; one that is there is gone on from.",
        ),
    ] = None,
    backend: Backend = "numpy",
    profile: Annotated[str | None, typer.Option(help="exact, f32 or bf16, instead of the network's own.")] = None,
    json: Json = False,
) -> None:
    """Train a network in this process.

    The same network, data and steps end in the same weights, anywhere, also
    when it was killed on the way: with --until, the same command goes on.

    Examples:
      holdfast network train-local net.yaml --data digits --steps 500
      holdfast network train-local net.yaml --data digits --weights w --until 500
      holdfast network train-local net.yaml --data digits --weights w --json
    """
    from pathlib import Path

    from holdfast.cli import training

    with told():
        going_on = weights is not None and Path(weights).exists()
        network = _network(file, backend, weights if going_on else None, profile)
        if going_on and not json:
            typer.echo(f"going on after step {network.trainer.state.step}", err=True)

        def tell(metrics: "Metrics") -> None:
            if json:
                _print_json({"step": metrics.step, "loss": metrics.loss, "norm": metrics.norm, "rate": metrics.rate})
            elif metrics.step == 1 or metrics.step % 25 == 0:
                # Not echo: that would write into the bar's own line.
                print(f"step {metrics.step:>6}  loss {metrics.loss:.4f}  gradient {metrics.norm:.3f}", flush=True)

        if until is not None:
            steps = max(0, until - network.trainer.state.step)
        training.train(network, data, steps, weights, tell, bar=not json)
        digest = network.digest()
    _print_json({"sha256": digest}) if json else typer.echo(f"weights sha256 {digest}")


@group.command("eval")
def evaluate(
    file: FileArg,
    data: DataFlag,
    weights: Weights,
    samples: Annotated[int, typer.Option(min=1, help="How many samples at most.")] = 1000,
    backend: Backend = "numpy",
    json: Json = False,
) -> None:
    """Say how good a trained network is on data it was not trained on.

    Examples:
      holdfast network eval net.yaml --data digits --weights net.weights
    """
    with told():
        found = _network(file, backend, weights).evaluate(data, samples)
    if json:
        _print_json(found)
        return
    right = f", {100 * found['right']:.1f} % right" if "right" in found else ""
    typer.echo(f"loss {found['loss']:.4f}{right} over {int(found['samples'])} samples")


@group.command("generate")
def generate(
    file: FileArg,
    weights: Weights,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")],
    letters: Annotated[int, typer.Option(min=0, help="How many letters to write.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest letter.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Which of the possible texts.")] = 1,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute the past anew for every letter.")] = False,
    backend: Backend = "numpy",
    json: Json = False,
) -> None:
    """Write on from a prompt, letter by letter.

    Examples:
      holdfast network generate net.yaml --weights net.weights --prompt "Once "
    """
    with told():
        network = _network(file, backend, weights)
        text = network.generate(prompt, letters, temperature=temperature, seed=seed, cache=not no_cache)
    _print_json({"text": text}) if json else typer.echo(text)


@group.command("export")
def export(
    file: FileArg,
    weights: Weights,
    to: Annotated[str, typer.Option(metavar="FILE", help="Where the weights go, as safetensors.")],
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    json: Json = False,
) -> None:
    """Write the weights alone, for other programs.

    Examples:
      holdfast network export net.yaml --weights net.weights --to net.safetensors
    """
    if dtype not in ("float32", "float64"):
        raise typer.BadParameter("choose float32 or float64", param_hint="--dtype")
    with told():
        digest = _network(file, "numpy", weights).export(to, dtype)
    _print_json({"file": to, "sha256": digest}) if json else typer.echo(f"{to} sha256 {digest}")


def _print_json(found: Any) -> None:
    import json

    typer.echo(json.dumps(found, ensure_ascii=False))
