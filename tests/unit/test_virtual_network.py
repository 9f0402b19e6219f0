"""`holdfast.testing.Network`: a whole network in virtual time, asked by the same clients, decided as in production."""

import asyncio
import gc
import hashlib
import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
import holdfast.client.job_options
from holdfast.errors import FunctionRaised, JobCancelled, JobFailed, Misuse, NotFound, Refused, WaitExpired
from holdfast.model import Facts, NodeCause, TakeoverCause
from holdfast.model.cause_text import entry_text
from holdfast.testing import Body, Network, NetworkStuck, Run, really

pytest_plugins = ["both_clients", "pytester"]
pytestmark = pytest.mark.spec("J3")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(nodes=3, seed=1) as network:
        yield network


@pytest.fixture
def client(either: Any, network: Network) -> Any:
    return either(network.client, network.async_client)


def holder(network: Network, job: str) -> Any:
    network.until(lambda: any(job in node.running for node in network.nodes), seconds=60)
    return next(node for node in network.nodes if job in node.running)


@pytest.mark.spec("J5", "J3")
def test_a_machine_dies_under_a_job_which_another_takes_over(network: Network, client: Any) -> None:
    # given a job of twenty minutes, ten minutes in
    network.when("train", takes="20m", prints="trained\n")
    job = client.jobs.submit(["train", "--all"])
    network.advance(minutes=10)

    # when its machine loses power
    first = holder(network, job.id)
    first.kill()

    # then it succeeds elsewhere, twenty minutes after that was noticed
    done = job.wait()
    assert (done.state, done.attempts_made) == ("succeeded", 2)
    assert done.node != first.id
    assert 30 * 60 < network.now_s < 31 * 60
    assert "".join(line.text for line in done.logs(stream="stdout") if line.stream == "stdout") == "trained\n"
    assert done.result_sha256 == hashlib.sha256(b"trained\n").hexdigest()


@pytest.mark.spec("J6")
def test_a_job_that_saves_goes_on_where_it_was(network: Network, client: Any) -> None:
    network.when("train", takes="20m")
    job = client.jobs.submit(["train"], checkpoint="1m")
    network.advance(minutes=10)
    holder(network, job.id).kill()

    assert job.wait().state == "succeeded"
    # twenty minutes of work, the failure, and at most one interval twice
    assert 20 * 60 < network.now_s < 22 * 60


@pytest.mark.spec("J7", "J10")
def test_bodies_do_what_the_test_says(client: Any, network: Network, tmp_path: Path) -> None:
    # given bodies stated, worked out from the attempt, and gone wrong
    def flaky(run: Run) -> Body:
        assert run.argv == ("flaky", "x")
        return Body(takes="5s", fells_node=True) if run.attempt == 1 else Body(prints=f"on {run.node}\n")

    network.when("flaky", flaky)
    network.when("sum", lambda run: str(sum(map(int, run.argv[1:]))))
    network.when("bad", lambda run: 1 / 0)
    network.when("make", files={"out/model.bin": b"\x00\x01", "notes.txt": "fine"})

    # then jobs do just that
    assert client.jobs.run(["flaky", "x"]).attempts_made == 2
    assert "".join(line.text for line in client.jobs.run(["sum", "1", "2"]).logs() if line.stream == "stdout") == "3"
    with pytest.raises(JobFailed) as caught:
        client.jobs.run(["bad"])
    assert caught.value.job.exit_code == 1
    assert any("ZeroDivisionError" in line.text for line in client.jobs.logs(caught.value.job.id, stream="stderr"))
    client.jobs.run(["make"]).results(tmp_path / "to")
    assert (tmp_path / "to" / "out" / "model.bin").read_bytes() == b"\x00\x01"
    assert (tmp_path / "to" / "notes.txt").read_text() == "fine"


def test_commands_can_really_be_run(client: Any, network: Network, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "double.py").write_text("import sys; open('out', 'w').write(sys.argv[1] * 2); print('ok')")
    network.when("python3", really(takes="10m"))
    job = client.jobs.run(["python3", "double.py", "ab"], folder=tmp_path / "code")
    assert job.took_s > 600
    job.results(tmp_path / "to")
    assert (tmp_path / "to" / "out").read_text() == "abab"
    # and an earlier job's files are the next one's input
    network.when("cat", really())
    read = client.jobs.run(["cat", "inputs/before/out"], inputs={"before": job.id})
    assert any(line.text == "abab" for line in read.logs(stream="stdout"))


def test_a_function_runs_and_returns_its_value(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doubling.py").write_text("def double(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    double = holdfast.function(client=network.client())(importlib.import_module("doubling").double)
    assert double.remote(21) == 42
    assert double.map([1, "a"]) == [2, "aa"]
    assert asyncio.run(double.remote_async("b")) == "bb"
    assert asyncio.run(double.map_async([3])) == [6]
    with pytest.raises(FunctionRaised, match="TypeError"):
        double.remote(None)


@pytest.mark.spec("J14")
def test_an_answer_that_gets_lost_is_asked_for_again_and_is_one_job(network: Network, client: Any) -> None:
    network.door.lost = 2
    job = client.jobs.submit(["once"])
    assert len(client.jobs.list()) == 1
    assert job.wait().state == "succeeded"


@pytest.mark.spec("J14")
def test_an_orchestrator_that_is_away_is_waited_for(network: Network, client: Any) -> None:
    network.when("train", takes="1m")
    job = client.jobs.submit(["train"])
    network.kill_orchestrator()
    network.advance(seconds=10)
    network.start_orchestrator()
    assert job.wait().state == "succeeded"
    assert client.jobs.submit(["train"]).stop().state in ("cancelled", "queued", "assigned", "preparing", "stopping")


@pytest.mark.spec("J8")
def test_a_machine_behind_a_cut_comes_back_with_its_result(network: Network, client: Any) -> None:
    network.when("once", takes="10m")
    job = client.jobs.submit(["once"], recovery="never")
    node = holder(network, job.id)
    node.cut()
    network.advance(minutes=2)
    assert job.refresh().state != "running"
    node.mend()
    done = job.wait(check=False)
    # what must not run twice did not, whatever became of it
    assert done.attempts_made == 1


@pytest.mark.spec("J12", "J13", "N7")
def test_people_stop_move_drain_and_are_refused(network: Network, client: Any) -> None:
    network.when("long", takes="10h")
    job = client.jobs.submit(["long"])
    first = holder(network, job.id)
    target = next(node for node in network.nodes if node is not first)
    assert client.jobs.move(job.id, target.id).move.to == target.id
    assert client.jobs.wait_moved(job.id).node == target.id
    client.nodes.drain(target.id)
    network.advance(minutes=5)
    assert job.refresh().node != target.id
    with pytest.raises(WaitExpired):
        job.wait(timeout_s=30)
    job.stop()
    with pytest.raises(JobCancelled):
        job.wait()
    with pytest.raises(Refused) as caught:
        client.jobs.submit(["long"], cpu=64)
    assert caught.value.code == "no_fit"
    assert caught.value.failure is not None
    with pytest.raises(Refused, match="it can be stdout"):
        list(client.jobs.logs(job.id, stream="sideways"))
    with pytest.raises(NotFound):
        client.nodes.get("nobody")
    with pytest.raises(NotFound):
        client.arrays.get("arr_nothing")


@pytest.mark.spec("H5")
def test_a_check_says_what_a_submission_would_meet(network: Network, client: Any) -> None:
    checked = client.check(["x"], cpu=2)
    assert (checked.verdict, checked.probe.answered) == ("now", True)
    assert client.check(["x"], cpu=64).verdict == "never"
    assert next(iter(client.watch_check(["x"]))).verdict == "now"
    assert client.estimates().scores is not None
    newest = list(client.events())[-1].seq
    assert [event.seq for event in client.events(tail=1)] == [newest]


@pytest.mark.spec("J4")
def test_what_is_followed_lets_time_pass(network: Network, client: Any) -> None:
    network.when("long", takes="30m", prints="end\n")
    job = client.jobs.submit(["long"])
    lines = [line.text for line in job.logs(follow=True)]
    assert lines[-1] == "succeeded"
    assert "end\n" in lines
    assert network.now_s > 30 * 60
    kinds = [event.kind for event in client.events(job=job.id)]
    assert (kinds[0], kinds[-1]) == ("job.queued", "job.ended")


@pytest.mark.spec("J11")
def test_the_same_seed_is_the_same_run() -> None:
    def told(seed: int) -> tuple[str, str]:
        with Network(nodes=4, seed=seed) as network:
            client = network.client()
            jobs = [client.jobs.submit(["work", str(n)]) for n in range(5)]
            network.nodes[1].kill()
            network.advance(minutes=1)
            network.nodes[1].start()
            states = " ".join(f"{job.id} {job.wait().node}" for job in jobs)
            return network.fingerprint, states

    first, again, other = told(5), told(5), told(6)
    assert first == again
    assert first[0] != other[0]


def test_a_day_passes_in_no_time(network: Network) -> None:
    began = time.process_time()
    network.advance(days=1)
    assert network.now_s > 86_400
    assert time.process_time() - began < 5
    assert all(node.ready for node in network.nodes)


def test_what_makes_no_sense_is_said(network: Network) -> None:
    with pytest.raises(Misuse, match="without nodes"):
        Network(nodes=0)
    with pytest.raises(Misuse, match="'cpus'"):
        Network(nodes=[{"cpus": 3}])
    with pytest.raises(Misuse, match="twice"):
        network.when("a", Body(), takes="1s")
    with pytest.raises(NetworkStuck, match="2 virtual seconds"):
        network.until(lambda: False, seconds=2)
    with Network(nodes=[{"cpu": 1}, {"cpu": 8, "gpu": 2, "gpu_memory": "24GiB"}]) as gpu:
        assert gpu.client().jobs.run(["x"], gpu=2, gpu_memory="20GiB").node == "node_2"


def test_the_fixture_is_a_network_and_a_failure_shows_its_story(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["holdfast.testing.network_plugin"]')
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.holdfast_network(nodes=2, seed=9)
        def test_mine(holdfast_network):
            assert len(holdfast_network.nodes) == 2
            holdfast_network.client().jobs.run(["x"])

        def test_other(holdfast_network):
            holdfast_network.client().jobs.run(["x"], name="mine")
            assert False
        """
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*what happened in the network (seed 0)*", "*job.ended*succeeded*"])


@pytest.mark.spec("J12")
def test_an_interrupted_wait_leaves_the_job_alone(
    network: Network, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given somebody who waits for a long job
    network.when("long", takes="1h")
    job = client.jobs.submit(["long"])
    holder(network, job.id)

    # when they press Ctrl-C
    def interrupted(seconds: float, idle_s: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(network, "pass_time", interrupted)
        with pytest.raises(KeyboardInterrupt, match=f"{job.id} goes on: only the waiting was interrupted"):
            job.wait()

    # then the job was not touched
    assert job.refresh().state == "running"


@pytest.mark.spec("J12", "J16")
def test_a_name_stops_what_has_not_ended_and_nothing_where_several_have_not(network: Network, client: Any) -> None:
    # given an older job that runs and a newer one of the same name that has ended
    network.when("long", takes="10h")
    old = client.jobs.submit(["long"], name="train")
    holder(network, old.id)
    assert client.jobs.run(["short"], name="train").id == client.jobs.get("train").id

    # then the name means the newest to whoever reads, and the one that runs to whoever stops it
    assert client.jobs.get("train", live=True).id == old.id

    # but where two run, nobody guesses, and nothing is stopped
    other = client.jobs.submit(["long"], name="train")
    for do in (lambda: client.jobs.stop("train"), lambda: client.jobs.move("train", network.nodes[0].id)):
        with pytest.raises(Refused) as caught:
            do()
        assert caught.value.code == "ambiguous"
    assert {client.jobs.get(job.id).verdict for job in (old, other)} == {None}
    other.stop()
    assert client.jobs.stop("train").id == old.id

    # nor is the name of an array one for one of its jobs
    array = client.arrays.submit(["long", "{item}"], ["1", "2"], name="sweep")
    assert client.jobs.get("sweep").array == array.id
    with pytest.raises(Refused, match=array.id):
        client.jobs.stop("sweep")

    # also where the newest of them has ended
    client.jobs.stop(client.jobs.get("sweep").id)
    network.until(lambda: client.jobs.get("sweep").phase == "ended")
    with pytest.raises(Refused, match=array.id):
        client.jobs.stop("sweep")
    assert array.stop().ended


@pytest.mark.spec("J16")
def test_arrays_batches_tokens_and_the_rest_are_answered_too(network: Network, client: Any) -> None:
    network.when("odd", lambda run: int(run.argv[1]) % 2)
    array = client.arrays.submit(["odd", "{item}"], ["0", "1", "2"])
    assert array.wait().counts == {"failed": 1, "succeeded": 2}
    network.when("odd", Body(prints="even now"))
    assert array.retry().wait().counts == {"succeeded": 3}
    assert array.stop().ended

    taken = client.jobs.submit_many([["a"], ["b"], holdfast.client.job_options.requested(["c"], {"cpu": 900})])
    assert [getattr(one, "code", "taken") for one in taken] == ["taken", "taken", "no_fit"]
    again = taken[0].wait().rerun()
    assert again.id != taken[0].id
    assert len(client.jobs.list(limit=2)) == 2
    token = client.tokens.create(uses=1, note="for a test")
    assert [(one.id, one.state, one.uses_left, one.note) for one in client.tokens.list()] == [
        (token.id, "good", 1, "for a test")
    ]
    client.tokens.revoke(token.id[:-1])
    assert [one.state for one in client.tokens.list()] == ["revoked"]
    client.tokens.revoke(token.id)  # once more changes nothing
    with pytest.raises(NotFound) as caught:
        client.tokens.revoke("tok_")
    assert caught.value.code == "no_such_token"
    client.ping()
    assert client.doctor().ok


@pytest.mark.spec("N6")
def test_the_beginning_of_several_tokens_revokes_none_of_them(client: Any) -> None:
    begun: set[str] = set()
    while (shared := client.tokens.create().id[:5]) not in begun:
        begun.add(shared)
    with pytest.raises(Refused) as caught:
        client.tokens.revoke(shared)
    assert caught.value.code == "ambiguous"
    assert {one.state for one in client.tokens.list()} == {"good"}


@pytest.mark.spec("J12")
def test_a_network_that_was_closed_says_so_whatever_is_asked_of_it() -> None:
    # given a network that was used, and is closed
    with Network(nodes=1) as network:
        network.when("train", takes="1m")
        client, awaited = network.client(), network.async_client()
        job = client.jobs.submit(["train"])
        followed = client.jobs.logs(job.id, follow=True)
        next(followed)
    node = network.nodes[0]

    # when something of it is used all the same, then the error says what happened and what to do
    uses: list[Callable[[], Any]] = [
        job.wait,
        job.refresh,
        lambda: next(followed),
        lambda: asyncio.run(awaited.jobs.get(job.id)),
        network.client,
        network.async_client,
        lambda: network.when("train", takes="2m"),
        lambda: network.advance(seconds=1),
        lambda: network.until(lambda: False),
        network.kill_orchestrator,
        network.start_orchestrator,
        node.kill,
        node.cut,
        node.freeze,
        lambda: node.running,
    ]
    for use in uses:
        with pytest.raises(Misuse, match="this network was closed") as caught:
            use()
        assert "with" in caught.value.hint
    # and what happened can still be read
    assert "attempt 1 goes to" in network.story() and network.now_s > 0 and "node_1" in repr(node)


def test_a_network_that_nobody_closed_is_named_as_a_file_would_be() -> None:
    def forgets() -> None:
        Network(nodes=1, seed=77)
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"Network \(seed 77\) was never closed: use it with `with`"):
        forgets()


@pytest.mark.spec("J10")
def test_two_networks_in_one_process_know_nothing_of_each_other(tmp_path: Path) -> None:
    def story(network: Network, word: str) -> Iterator[str]:
        """A job from submission to results, step by step."""
        network.when("work", takes="10m", prints=word, files={"made": word})
        job = network.client().jobs.submit(["work"], name="same")
        yield ""
        network.advance(minutes=5)
        yield ""
        done = job.wait()
        yield ""
        done.results(tmp_path / word)
        yield network.fingerprint

    # given what happens in a network that is alone
    with Network(nodes=2, seed=5) as alone:
        expected = list(story(alone, "left"))[-1]

    # when the same happens in one that takes turns with another of the same seed, in which something else happens
    with Network(nodes=2, seed=5) as left, Network(nodes=2, seed=5) as right:
        both = [said for pair in zip(story(left, "left"), story(right, "right"), strict=True) for said in pair]
        assert len(left.client().jobs.list()) == len(right.client().jobs.list()) == 1

    # then it happens the same, and each has its own files
    assert both[-2] == expected
    assert [(tmp_path / word / "made").read_text() for word in ("left", "right")] == ["left", "right"]


@pytest.mark.spec("H4", "H6")
def test_causes_are_told_as_codes_beside_the_words(network: Network, client: Any) -> None:
    # given a job on a machine that dies, and one that waits for a machine with nothing else on it
    network.when("train", takes="20m")
    job = client.jobs.submit(["train"])
    first = holder(network, job.id)
    first.kill()
    job.wait()
    for node in network.nodes:
        client.nodes.drain(node.id)
    waits = client.jobs.submit(["train"])

    # then every entry has its facts, of which its sentence is made
    told = [(event, msgspec.convert(event.facts, Facts)) for event in client.events()]
    assert all(entry_text(event.kind, facts) == event.text for event, facts in told)
    takeover = next(facts for event, facts in told if event.kind == "job.takeover")
    assert takeover.takeover is TakeoverCause.LOST

    # and rows and explanations have the code of what they say in words
    assert (waits.wait_reason, waits.waiting) == ("room", "a machine with room")
    explained = client.jobs.explain(waits.id)
    assert explained.wait_reason == "room" and explained.gate_codes["draining"] == explained.gates["draining"]
    assert client.check(["train"]).gate_codes == explained.gate_codes
    known = {node.id: node.cause_code for node in client.nodes.list()}
    assert known[first.id] in {code.value for code in NodeCause} - {"unknown"}
