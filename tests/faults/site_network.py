"""A network whose every site can be made to fail, under a supervisor that starts again whatever died.

Its jobs visit as many sites as one job can: files in, a checkpoint, files out, both streams of output.
"""

import contextlib
import json
import os
import secrets
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
from fault_network import PATIENT, SMALL, FaultNetwork
from fault_sites import Faults
from site_nursery import Nursed, Nursery
from warm import SETTINGS

from holdfast.errors import HoldfastError
from holdfast.node.operator import operator_socket
from holdfast.orchestrator.leader import record
from holdfast.testing.processes import READY_S, NodeProcesses, OrchestratorProcess, wait_for
from holdfast.wire import node_pb2 as pb
from holdfast.wire.node_pb2_grpc import NodeLinkStub

SCRIPT = """
set -e
if [ -n "$HOLDFAST_CHECKPOINT_DIR" ] && [ ! -e "$HOLDFAST_CHECKPOINT_DIR/state" ]; then
  cp -r given "$HOLDFAST_CHECKPOINT_DIR/state"; sleep 1.5
fi
mkdir out && cp given/text out/text && ln -s text out/link
cat given/text
echo aside >&2
"""


class SiteOrchestrator(OrchestratorProcess):
    def __init__(self, nursery: Nursery, words: list[str], env: dict[str, str], log: Path, url: str, listen: str):
        self.words, self.log, self.url, self.listen = words, log, url, listen
        self._out = log.open("ab")
        self.process = Nursed(nursery, {"words": words, "env": env, "log": str(log)})  # pyright: ignore[reportAttributeAccessIssue]


class SiteNode(NodeProcesses):
    def __init__(self, nursery: Nursery, like: dict[str, Any]) -> None:
        self.name, self.home, self.words, self.env, self.log = (
            like[one] for one in ("name", "home", "words", "env", "log")
        )
        self.through = ()
        self._nursery = nursery
        self._out = self.log.open("ab")
        self.process = Nursed(nursery, {"words": self.words, "env": self.env, "log": str(self.log)})  # pyright: ignore[reportAttributeAccessIssue]

    def again(self) -> "SiteNode":
        self.close()
        return SiteNode(self._nursery, vars(self))


class SiteNetwork(FaultNetwork):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "faults").mkdir()
        self.faults = Faults(folder / "faults")
        self.nursery = Nursery({**os.environ, **self.faults.environment()})
        self.deaths: list[str] = []
        self.sent: dict[str, bytes] = {}
        """What each job was given."""
        self.token = ""
        self.rules = {"probation_ms": 200, "strikes_to_quarantine": 100}
        """Many faults come one after the other here: each shall find machines that have nothing to prove."""
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def launch(
        self, words: list[str], env: dict[str, str] | None, log: Path, url: str, listen: str
    ) -> OrchestratorProcess:
        path = self.folder / f"record-{len(self.records()) + 1:03}.jsonl"
        path.touch()
        rules = msgspec.json.encode({**PATIENT, **self.rules}).decode()
        all_of_it = {record.ENVIRONMENT: str(path), SETTINGS: rules, **self.faults.environment(), **(env or {})}
        return SiteOrchestrator(self.nursery, words, self.environment(all_of_it), log, url, listen)

    def begin_node(self, name: str, token: str) -> None:
        home, log = self.folder / f"node-{name}", self.folder / f"node-{name}.log"
        words = ["node", "--orchestrator", self.up.listen, "--token", token, "--name", name, "--home", str(home)]
        words += ["--unsafe-process-runtime"] if self.unsafe else []
        env = self.environment(self.faults.environment())
        self._adopt(SiteNode(self.nursery, {"name": name, "home": home, "words": words, "env": env, "log": log}))

    def _adopt(self, node: NodeProcesses) -> None:
        self.nodes[node.name] = node
        self._programs.append(node)

    def begin(self) -> None:
        """An orchestrator and two machines, under the supervisor."""
        self.start_orchestrator()
        self.supervise()
        self.token = self.client().tokens.create(uses=-1).token
        for name in ("ant", "bee"):
            self.begin_node(name, self.token)
        self.wait_whole()

    # --- the supervisor ---

    def supervise(self) -> None:
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._over.wait(0.03):
            with contextlib.suppress(OSError, ValueError):
                self._look()

    def _look(self) -> None:
        if self.orchestrator is not None and not self.orchestrator.running():
            self.deaths.append("orchestrator")
            self.restart_orchestrator(wait=False)
        for node in list(self.nodes.values()):
            if isinstance(node, SiteNode) and not node.running():
                self.deaths.append(node.name)
                self._adopt(node.again())

    def close(self) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        super().close()
        self.nursery.close()

    # --- jobs ---

    def send(self, **wishes: Any) -> str:
        """Submit a job with files that were never there before; its id."""
        text = (secrets.token_hex(20_000) + "\n").encode()
        folder = self.folder / "sent" / secrets.token_hex(4)
        (folder / "given").mkdir(parents=True)
        (folder / "given" / "text").write_bytes(text)
        (folder / "given" / "link").symlink_to("text")
        client = self.client()
        package = client.content.send(folder).manifest
        job = client.jobs.submit(["sh", "-c", SCRIPT], key=folder.name, package=package, **{**SMALL, **wishes}).id
        self.sent[job] = text
        return job

    def check(self, job: str) -> None:
        """It ended once and well, with the bytes it was given, and nobody else was blamed for what happened to it."""
        client, text = self.client(), self.sent.pop(job)
        view = client.jobs.wait(job, timeout_s=READY_S, check=False)
        assert view.verdict == "succeeded", f"{view.failure}; {[(a.failure, a.revoked) for a in view.attempts]}"
        blamed = [a.failure for a in view.attempts if a.failure and a.failure.blame == "user"]
        assert not blamed, blamed
        assert (len(self.journal("job.accepted", job=job)), len(self.journal("job.ended", job=job))) == (1, 1)
        to = self.folder / "results" / job
        client.jobs.results(job, to=to)
        assert (to / "out" / "text").read_bytes() == text and os.readlink(to / "out" / "link") == "text"
        accepted = view.accepted
        lines = [line for line in client.jobs.logs(job) if line.attempt == accepted]
        printed = {s: "".join(line.text for line in lines if line.stream == s) for s in ("stdout", "stderr")}
        assert printed == {"stdout": text.decode(), "stderr": "aside\n"}
        shutil.rmtree(to)

    # --- what can happen ---

    def do_job(self) -> None:
        self.check(self.send())

    def do_saving(self) -> None:
        """A job saves its state."""
        self.check(self.send(recovery="resume", checkpoint_ms=1_000))

    def do_stop(self) -> None:
        """A job that runs is stopped."""
        job = self.hold()
        self.node_running(job)
        self.client().jobs.stop(job)
        assert self.client().jobs.wait(job, timeout_s=READY_S, check=False).verdict == "cancelled"
        self.do_job()

    def do_strangers(self) -> None:
        """Somebody without a token is turned away, and so is a machine that does not say who it is."""

        def person_refused() -> bool:
            with contextlib.suppress(urllib.error.URLError, OSError):
                try:
                    urllib.request.urlopen(f"{self.up.url}/v1/jobs", timeout=5).close()
                except urllib.error.HTTPError as wrong:
                    with wrong:
                        return wrong.code == 401
            return False

        def machine_refused() -> bool:
            options = [("grpc.use_local_subchannel_pool", 1)]
            with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(self.up.listen, options=options) as channel:
                call = NodeLinkStub(channel).Control(iter([pb.NodeFrame()]), timeout=5)  # pyright: ignore
                return [frame.WhichOneof("said") for frame in call][-1:] == ["refusal"]
            return False

        wait_for(person_refused, "a person without a token to be turned away")
        wait_for(machine_refused, "a machine that says nothing to be turned away")
        self.do_job()

    def do_operator(self) -> None:
        """The node's operator pauses it and lets it go on."""
        node = self.nodes["ant"]
        for order in ("pause", "resume"):

            def obeyed(order: str = order) -> bool:
                with contextlib.suppress(HoldfastError):
                    operator_socket.ask(node.home, {"do": order, "grace_ms": 0} if order == "pause" else {"do": order})
                    return True
                return False

            wait_for(obeyed, f"{node.name} to {order}")
        self.wait_whole()
        self.do_job()

    def do_agent(self) -> None:
        """An agent is killed while a job runs."""
        job = self.send()
        self.nodes["ant"].kill_agent()
        self.wait_whole()
        self.check(job)
        self.do_job()

    def do_orchestrator(self) -> None:
        job = self.send()
        self.up.kill()
        self.wait_whole()
        self.check(job)

    def do_machine(self) -> None:
        """Another machine joins, works, and is gone."""
        name = f"new-{secrets.token_hex(3)}"
        self.begin_node(name, self.token)
        self.wait_whole()
        self.do_job()
        node = self.nodes.pop(name)
        wait_for(lambda: not list((node.home / "attempts").iterdir()), f"{name} to be empty")
        node.kill_tree()

    def wait_whole(self, *states: str) -> None:
        """Until every machine takes work."""
        states = states or ("ready", "probation")

        def there() -> bool:
            views = [view for view in self.client().nodes.list() if view.connected and view.state in states]
            return {view.name for view in views} >= set(self.nodes)

        wait_for(there, f"{sorted(self.nodes)} to be {' or '.join(states)}")

    def check_whole(self) -> None:
        """Nothing is left behind, every machine takes work, and the orchestrator finds nothing wrong."""
        self.wait_whole("ready")
        for node in self.nodes.values():
            self.wait_clean(node)
        wait_for(self._is_announced, "endpoint.json to lead to the orchestrator")
        assert self.client().doctor().ok

    def _is_announced(self) -> bool:
        with contextlib.suppress(OSError):
            return json.loads((self.home / "orchestrator" / "endpoint.json").read_bytes())["pid"] == self.up.pid
        return False


PHASES: dict[str, Callable[[SiteNetwork], None]] = {
    "job": SiteNetwork.do_job,
    "saving": SiteNetwork.do_saving,
    "stop": SiteNetwork.do_stop,
    "strangers": SiteNetwork.do_strangers,
    "operator": SiteNetwork.do_operator,
    "agent": SiteNetwork.do_agent,
    "orchestrator": SiteNetwork.do_orchestrator,
    "machine": SiteNetwork.do_machine,
}
"""What the network goes through, the quickest first: a site is tried in the first of them that visits it."""
