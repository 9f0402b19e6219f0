"""`holdfast neural` as a person types it: check, look at, train, judge, ask and export a network, offline."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("cli-network"), pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "neural"
DIGITS = str(EXAMPLES / "digits.yaml")
TEXT = str(EXAMPLES / "letters.txt")
SHA = r"[0-9a-f]{64}"


def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, env=env)


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "holdfast.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The letters' network, made small enough to train at once."""
    text = (EXAMPLES / "letters.yaml").read_text()
    text = text.replace("shape: [64]", "shape: [16]").replace("repeat: 2", "repeat: 1")
    text = re.sub(r"stages: .*", "stages: 2", text)
    path = tmp_path_factory.mktemp("network") / "small.yaml"
    path.write_text(text)
    return path


@pytest.mark.spec("V1", "J3")
def test_validate_says_what_a_network_is() -> None:
    plain = holdfast("neural", "validate", DIGITS)
    told = json.loads(holdfast("neural", "validate", DIGITS, "--json").stdout)

    assert plain.returncode == 0
    assert "17,226 parameters" in plain.stdout
    assert (told["name"], told["parameters"], told["stages"]) == ("digits", 17226, 2)
    assert "validate" in holdfast("neural", "--help").stdout


@pytest.mark.spec("V1")
def test_the_old_word_is_understood_and_listed_nowhere() -> None:
    assert holdfast("network", "validate", DIGITS).stdout == holdfast("neural", "validate", DIGITS).stdout
    assert "  network " not in holdfast("--help").stdout and "  neural " in holdfast("--help").stdout


@pytest.mark.spec("V1", "J7")
def test_validate_points_at_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "net.yaml"
    broken.write_text(Path(DIGITS).read_text().replace("op: gelu", "op: jelu", 1))
    done = holdfast("neural", "validate", str(broken))

    assert done.returncode == 78
    assert re.search(r"net\.yaml:14:25: there is no operator `jelu` here \[topology\]", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.spec("V1")
def test_show_draws_the_graph_its_work_and_its_stages() -> None:
    table = holdfast("neural", "show", DIGITS).stdout
    told = json.loads(holdfast("neural", "show", DIGITS, "--json").stdout)

    assert re.search(r"0 +hidden1 +linear +pixels +128 +8,320", table)
    assert "stage 1:" in table
    assert [n["name"] for n in told["nodes"]][-1] == "loss"
    assert told["nodes"][0]["products"] == ["xw 1×64×128"]
    assert sum(s["flops"] for s in told["stages"]) == told["flops"]


@pytest.mark.spec("V1", "V5", "V9")
def test_a_text_is_learnt_judged_continued_and_exported(small: Path) -> None:
    # given a training in two parts
    kept = str(small.parent / "kept.safetensors")
    first = holdfast("neural", "train-local", str(small), "--data", TEXT, "--steps", "3", "--weights", kept)
    assert first.returncode == 0, first.stderr
    told = holdfast(
        "neural", "train-local", str(small), "--data", TEXT, "--steps", "3", "--weights", kept,
        "--backend", "torch", "--json",
    )  # fmt: skip
    lines = [json.loads(line) for line in told.stdout.splitlines()]

    # then it went on where it stood, and ends like one that was never interrupted
    assert [line["step"] for line in lines[:-1]] == [4, 5, 6]
    straight = holdfast("neural", "train-local", str(small), "--data", TEXT, "--steps", "6")
    assert re.search(f"weights sha256 ({SHA})", straight.stdout)[1] == lines[-1]["sha256"]  # type: ignore[index]

    # and can be judged
    judged = holdfast("neural", "eval", str(small), "--data", TEXT, "--weights", kept, "--samples", "32")
    assert re.search(r"loss \d\.\d+, \d+\.\d % right over 32 samples", judged.stdout), judged.stderr
    same = holdfast(
        "neural", "eval", str(small), "--data", TEXT, "--weights", kept, "--samples", "32",
        "--backend", "torch", "--json",
    )  # fmt: skip
    assert f"loss {json.loads(same.stdout)['loss']:.4f}" in judged.stdout

    # and asked, with the same words whether or not it remembers
    asked = holdfast(
        "neural", "generate", str(small), "--weights", kept, "--prompt", "the node ", "--letters", "20",
        "--temperature", "0.9", "--seed", "3",
    )  # fmt: skip
    slow = holdfast(
        "neural", "generate", str(small), "--weights", kept, "--prompt", "the node ", "--letters", "20",
        "--temperature", "0.9", "--seed", "3", "--no-cache", "--backend", "torch", "--json",
    )  # fmt: skip
    assert asked.stdout.startswith("the node ")
    assert asked.stdout == json.loads(slow.stdout)["text"] + "\n"

    # and taken elsewhere
    out = small.parent / "out.safetensors"
    done = holdfast("neural", "export", str(small), "--weights", kept, "--to", str(out), "--dtype", "float64", "--json")
    assert re.fullmatch("[0-9a-f]{64}", json.loads(done.stdout)["sha256"]), done.stderr
    assert out.stat().st_size > 8 * 45_000


@pytest.mark.spec("V5", "J10")
def test_a_training_that_is_interrupted_or_killed_goes_on_and_ends_in_the_same_weights(
    small: Path, tmp_path: Path
) -> None:
    # given a training that would take for ever
    kept = tmp_path / "kept.safetensors"
    words = ["neural", "train-local", str(small), "--data", TEXT, "--weights", str(kept)]

    # when it is interrupted, then it ends after its step, says so, and has kept it
    with started(*words, "--steps", "100000", "--json") as training:
        assert training.stdout is not None and '"step": 1,' in training.stdout.readline()
        training.send_signal(signal.SIGINT)
        rest, said = training.communicate(timeout=60)
        assert training.returncode == 130, said
    done = 1 + len(rest.splitlines())
    assert f"interrupted after step {done}; {kept} holds it: --steps {100_000 - done} continues" in said

    # and when it is killed on its way, it goes on from what was kept
    with started(*words, "--until", "100000", "--json") as training:
        assert training.stdout is not None and f'"step": {done + 1},' in training.stdout.readline()
        training.kill()
    words = ["--data", TEXT, "--weights", str(kept)]
    last = holdfast("neural", "train-local", str(small), *words, "--until", str(done + 5))
    assert f"continuing after step {done}\n" in last.stderr

    # and ends in the weights of a training that nothing disturbed
    straight = holdfast("neural", "train-local", str(small), "--data", TEXT, "--steps", str(done + 5))
    ends = straight.stdout.splitlines()[-1]
    assert re.fullmatch(f"weights sha256 {SHA}", ends), straight.stderr
    assert last.stdout.splitlines()[-1] == ends

    # and typed once more it has nothing to do
    again = holdfast("neural", "train-local", str(small), *words, "--until", str(done + 5))
    assert again.stdout == f"{ends}\n"


@pytest.mark.spec("V1")
def test_a_quick_profile_may_be_chosen_for_a_training() -> None:
    done = holdfast("neural", "train-local", DIGITS, "--data", "digits", "--steps", "2", "--profile", "f32")
    assert "step      1  loss 2.3" in done.stdout, done.stderr


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["eval", DIGITS, "--data", "digits", "--weights", "none"], 78, "cannot be read"),
        (["train-local", DIGITS, "--data", "none.txt"], 78, "feeds the inputs tokens and next"),
        (["train-local", DIGITS, "--data", "digits", "--backend", "abacus"], 78, "no backend abacus"),
        (["export", DIGITS, "--weights", "none", "--to", "x", "--dtype", "int8"], 2, "float32 or float64"),
        (["show", "none.yaml"], 78, "cannot be read"),
    ],
)
def test_mistakes_are_told_in_words(words: list[str], code: int, says: str) -> None:
    done = holdfast("neural", *words)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spec("J3")
def test_the_front_door_does_not_import_numpy() -> None:
    code = "import sys, holdfast.cli.main; print('numpy' in sys.modules, 'holdfast.neural' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == [
        "False",
        "False",
    ]
