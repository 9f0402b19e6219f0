"""The example that trains: its machine dies in the middle, and the loss curve is that of an undisturbed run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fault_network import FaultNetwork, Fleet

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train"
STEPS, MIDDLE = "6000", "3000"
TRAINING = f"""
case "$HOLDFAST_ATTEMPT" in
  *.1) python3 train.py --steps {MIDDLE} --save-every 0.2; exec sleep 600;;
  *) exec python3 train.py --steps {STEPS} --save-every 0.2;;
esac
"""
"""The first attempt comes to the middle and no further: there its machine dies, however late somebody sees to that."""

pytestmark = pytest.mark.xdist_group("faults-training")


@pytest.fixture(scope="module")
def network(fleet: Fleet) -> FaultNetwork:
    return fleet("ant", "bee")


def steps_of(output: str) -> list[str]:
    return [line for line in output.splitlines() if not line.startswith("#")]


@pytest.mark.spec("J6", "J5", "J8", "J10")
def test_training_goes_on_with_the_same_loss_curve_after_its_machine_died(
    network: FaultNetwork, tmp_path: Path
) -> None:
    # given an undisturbed run, at home
    alone = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "train.py"), "--steps", STEPS],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip

    # and the same as a job, which has trained for a while and saved a state
    client = network.client()
    watch = network.start_cli(
        "run", "--name", "curve", "--memory", "64MiB", "--disk", "64MiB", "--folder", str(EXAMPLE),
        "--checkpoint-every", "1s", "--", "sh", "-c", TRAINING,
        log=tmp_path / "watch",
    )  # fmt: skip
    job = network.wait_for(lambda: next((j.id for j in client.jobs.list().jobs if j.name == "curve"), ""), "the job")
    network.wait_for(lambda: client.jobs.get(job).checkpoint, "a checkpoint to be kept")
    first = network.node_running(job)

    # when its machine loses its power
    first.kill_tree()

    # then the job ends well on the other one, and says so to whoever watches
    assert watch.process.wait(120) == 0, watch.output()
    view = client.jobs.get(job)
    assert view.attempts_made == 2
    assert view.checkpoint is not None

    # and it went on from where it was saved, not from the beginning
    results = network.desk / "results" / "curve"
    before, after = ((results / name).read_text() for name in ("stdout.attempt-1.log", "stdout.log"))
    before = before[: before.rfind("\n") + 1]  # it may have died in the middle of a line
    resumed = int(steps_of(after)[0].split()[0])
    assert after.startswith(f"# goes on at step {resumed}\n")
    assert 0 < resumed <= int(MIDDLE)

    # and its losses, those of both machines together, are the undisturbed ones to the last digit
    curve = steps_of(alone.communicate(timeout=120)[0])
    assert steps_of(before) == curve[: len(steps_of(before))], "what the first machine printed before it died"
    assert steps_of(after) == curve[resumed:]
    assert (results / "loss.csv").read_bytes() == (tmp_path / "loss.csv").read_bytes()
    assert (results / "model.json").read_bytes() == (tmp_path / "model.json").read_bytes()
