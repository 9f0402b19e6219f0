"""`neural`: neural networks on this machine: validate, show, train-local, eval, generate, export.

Works without an orchestrator. NumPy and the file formats are imported only when a command runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.flags import Json

if TYPE_CHECKING:
    from holdfast.neural import NeuralNetwork, StepMetrics

group = typer.Typer(
    help="Train and use neural networks.\n\nExamples:\n  holdfast neural show net.yaml\n"
    "  holdfast neural train-local net.yaml --data digits --weights net.weights",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FileArg = Annotated[str, typer.Argument(metavar="FILE", help="The description of the neural network, in YAML.")]
Backend = Annotated[str, typer.Option(metavar="NAME", help="numpy, torch or cuda: the bits are the same.")]
Weights = Annotated[str, typer.Option(metavar="FILE", help="The checkpoint that training wrote.")]
DataFlag = Annotated[
    str, typer.Option("--data", metavar="SOURCE", help="digits, an .npz file of arrays, or a text file.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="neural")


@contextmanager
def told() -> Iterator[None]:
    """Converts errors of `holdfast.neural` to errors of the command line."""
    try:
        from holdfast.neural.refusals import NeuralError
    except ImportError as missing:
        from holdfast.errors import Misconfigured
        from holdfast.parts import install_hint

        raise Misconfigured(
            f"neural networks need {missing.name or 'NumPy'}, which is not installed",
            hint=install_hint("neural"), code="missing_part",
        ) from None  # fmt: skip
    try:
        yield
    except NeuralError as error:
        from holdfast.errors import Misconfigured

        raise Misconfigured(error.says, hint=error.hint, code=error.code) from None


def _network(
    file: str, backend: str = "numpy", weights: str | None = None, profile: str | None = None
) -> "NeuralNetwork":
    from holdfast.neural import NeuralNetwork

    network = NeuralNetwork.from_yaml(file, backend, profile)
    if weights:
        network.load(weights)
    return network


def _graph(file: str) -> Any:
    from holdfast.neural.network import read_graph

    return read_graph(file)


@group.command("validate")
def validate(file: FileArg, json: Json = False) -> None:
    """Check the description of a neural network, and point at errors.

    Examples:
      holdfast neural validate net.yaml
      holdfast neural validate net.yaml --json
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
    """Show a neural network: its graph, shapes, parameters, work and stages.

    Examples:
      holdfast neural show net.yaml
      holdfast neural show net.yaml --json
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
    steps: Annotated[int, typer.Option(min=1, help="How many more steps to run.")] = 500,
    until: Annotated[
        int | None, typer.Option(metavar="STEP", min=1, help="Train up to this step; instead of --steps.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The checkpoint: read at the start if it exists, written every half minute and at the end.",
        ),
    ] = None,
    backend: Backend = "numpy",
    profile: Annotated[str | None, typer.Option(help="exact, f32 or bf16, instead of the one in FILE.")] = None,
    json: Json = False,
) -> None:
    """Train a neural network in this process.

    The same neural network, data and steps give the same weights on any machine,
    even if training was killed: with --until, the same command continues it.

    Examples:
      holdfast neural train-local net.yaml --data digits --steps 500
      holdfast neural train-local net.yaml --data digits --weights w --until 500
      holdfast neural train-local net.yaml --data digits --weights w --json
    """
    from pathlib import Path

    from holdfast.cli import neural_training

    with told():
        going_on = weights is not None and Path(weights).exists()
        network = _network(file, backend, weights if going_on else None, profile)
        if going_on and not json:
            typer.echo(f"continuing after step {network.trainer.state.step}", err=True)

        def tell(metrics: "StepMetrics") -> None:
            if json:
                _print_json({"step": metrics.step, "loss": metrics.loss, "norm": metrics.norm, "rate": metrics.rate})
            elif metrics.step == 1 or metrics.step % 25 == 0:
                # Not echo: that would write into the line of the progress bar.
                print(f"step {metrics.step:>6}  loss {metrics.loss:.4f}  gradient {metrics.norm:.3f}", flush=True)

        if until is not None:
            steps = max(0, until - network.trainer.state.step)
        neural_training.train(network, data, steps, weights, tell, bar=not json)
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
    """Evaluate a trained neural network on data it was not trained on.

    Examples:
      holdfast neural eval net.yaml --data digits --weights net.weights
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
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the most likely letter.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Selects one of the possible texts.")] = 1,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Recompute past positions for every letter.")] = False,
    backend: Backend = "numpy",
    json: Json = False,
) -> None:
    """Continue a prompt, letter by letter.

    Examples:
      holdfast neural generate net.yaml --weights net.weights --prompt "Once "
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
      holdfast neural export net.yaml --weights net.weights --to net.safetensors
    """
    if dtype not in ("float32", "float64"):
        raise typer.BadParameter("choose float32 or float64", param_hint="--dtype")
    with told():
        digest = _network(file, "numpy", weights).export(to, dtype)
    _print_json({"file": to, "sha256": digest}) if json else typer.echo(f"{to} sha256 {digest}")


def _print_json(found: Any) -> None:
    import json

    typer.echo(json.dumps(found, ensure_ascii=False))
