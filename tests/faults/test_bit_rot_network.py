"""One flipped bit in what a real orchestrator stores: the job that needs it fails by the platform's fault, sending it
again replaces it, the garbage of others is still collected, and a scrub finds what nobody reads."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_network import HELD, SMALL, FaultNetwork
from warm import CONSTANTS

from holdfast.blobs import scan
from holdfast.blobs.keys import owned_key, owner_hash
from holdfast.client import Client
from holdfast.testing.processes import wait_for
from holdfast.testing.s3 import S3Server

pytestmark = pytest.mark.xdist_group("faults-rot")

OWNER = "ann"
GRACE_MS = 5_000
QUICK = {
    "holdfast.orchestrator.content.scrub:REST_S": 0.5,
    "holdfast.orchestrator.content.sweep:SWEEP_S": 0.5,
    "holdfast.orchestrator.content.sweep:BEAT_S": 0.25,
    "holdfast.blobs.garbage:Collector.__init__.__defaults__": [GRACE_MS],
}
"""Rounds that follow each other at once, and content that is collected after seconds."""


def flipped(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def folder_of(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "text").write_text(text)
    return path


def acting_for(network: FaultNetwork, owner: str) -> Client:
    return Client(network.up.url, network.client().access.create("user", owner=owner).token)


def need(client: Client, folder: Path, manifest: str) -> tuple[str, ...]:
    """Run a job that needs the folder; how it ended, and whose fault that was."""
    job = client.jobs.submit(["cat", "text"], package=manifest, **SMALL)
    view = job.wait(timeout_s=60, check=False)
    if view.failure is None:
        lines = [line.text for line in client.jobs.logs(job.id) if line.stream == "stdout"]
        assert "".join(lines) == (folder / "text").read_text()
        return (str(view.verdict),)
    paid = "billable" if view.failure.billable else "free"
    return str(view.verdict), view.failure.code, view.failure.blame, paid


LOST = ("failed", "damaged", "platform", "free")


def rots_and_is_replaced(network: FaultNetwork, stored: Path, tmp_path: Path) -> None:
    """`stored`: where the objects lie, in a folder or behind S3."""
    with acting_for(network, OWNER) as client:
        for number, what in enumerate(("a blob", "a manifest")):
            # given a folder that the network has, in which one bit flips
            folder = folder_of(tmp_path / f"sent {number}", f"{what} of {tmp_path.name}\n" * 100)
            sent = client.content.send(folder)
            (blob,) = scan(folder).manifest.blobs
            sha = blob.sha if what == "a blob" else sent.manifest
            flipped(stored / owned_key(owner_hash(OWNER), sha))
            # when a job needs it, then the job fails by the platform's fault
            assert need(client, folder, sent.manifest) == LOST, what
            # and sending it again replaces it, and the job succeeds
            again = client.content.send(folder)
            assert again.manifest == sent.manifest and again.moved > 0, what
            assert need(client, folder, again.manifest) == ("succeeded",), what
    assert not network.journal("node.strike", "node.quarantined")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNetwork]:
    with FaultNetwork(tmp_path_factory.mktemp("rot")) as network:
        network.rules = {"scrub_bytes_per_s": 1 << 30}
        network.start_orchestrator(env={CONSTANTS: json.dumps(QUICK)})
        network.start_node("ant")
        yield network


@pytest.mark.spec("J7", "J6")
def test_what_rots_is_named_and_replaced_by_the_next_send(machines: FaultNetwork, tmp_path: Path) -> None:
    rots_and_is_replaced(machines, machines.home / "orchestrator" / "blobs", tmp_path)


@pytest.mark.spec("J6", "J14")
def test_a_damaged_manifest_stops_no_sweep_of_others_and_a_scrub_finds_what_nobody_reads(
    machines: FaultNetwork, tmp_path: Path
) -> None:
    blobs = machines.home / "orchestrator" / "blobs"
    with acting_for(machines, OWNER) as ann, acting_for(machines, "bob") as bob:
        # given garbage of one owner, and a running job of another one, whose manifest is damaged
        unused = bob.content.send(folder_of(tmp_path / "unused", "nobody needs this\n" * 99)).manifest
        garbage = blobs / owned_key(owner_hash("bob"), unused)
        assert garbage.exists()
        held = ann.content.send(folder_of(tmp_path / "held", "of a job that runs\n" * 99)).manifest
        job = ann.jobs.submit(HELD, package=held, **SMALL)
        machines.node_running(job.id)
        damaged = flipped(blobs / owned_key(owner_hash(OWNER), held))
        # then nobody has to read it for the damage to be found
        wait_for(lambda: not damaged.exists(), "a scrub to set it aside")
        report = machines.client().doctor()
        assert any("found damaged" in finding.says and not finding.ok for finding in report.findings)
        # and the garbage of the other owner is collected all the same
        wait_for(lambda: not garbage.exists(), "the garbage to be collected")
        ann.jobs.stop(job.id)


@pytest.mark.spec("J7", "J6")
def test_what_rots_in_s3_is_named_and_replaced_by_the_next_send(network: FaultNetwork, tmp_path: Path) -> None:
    with S3Server() as s3:
        files = s3.bucket("files")
        network.start_orchestrator(env=s3.keys(), flags=["--blobs", "s3://files/here"])
        network.start_node("ant")
        rots_and_is_replaced(network, files / "here", tmp_path)
        # and a scrub finds what nobody reads
        with acting_for(network, OWNER) as client:
            sent = client.content.send(folder_of(tmp_path / "unread", "unread\n" * 99)).manifest
        damaged = flipped(files / "here" / owned_key(owner_hash(OWNER), sent))
        network.restart_orchestrator(env={**s3.keys(), CONSTANTS: json.dumps(QUICK)})
        wait_for(lambda: not damaged.exists(), "a scrub to find it")
