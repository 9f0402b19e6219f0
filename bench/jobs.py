"""Durable submit to placed, over HTTP: single calls and batches, SQLite and PostgreSQL.

A submit counts once the response has arrived: by then the job is committed and an attempt is assigned to a node (both
are checked). Every job carries an idempotency key, as the shipped client sends one. The nodes are clients of the real
protocol in a separate process; they accept every attempt and hold it, so the orchestrator handles their reports as
well. They are warmed first: a machine without a record is given 4 attempts at a time, so each completes some before.
Client, nodes, orchestrator and database share the machine; the orchestrator's processor time per job is given
beside the rate, since it does not depend on other load. Shipped defaults.
Path: HTTP over loopback, no TLS (loopback); fsync on; no isolation (nothing is executed).

    python bench/jobs.py [--jobs 4000] [--batch 100] [--stores sqlite postgresql] [--json]
"""

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import httpx
import psutil

NODES = 60
CONNECTIONS = 16
WARM, WARM_JOBS = "warm", 40 * NODES
"""Jobs of this name are completed at once. With so many, every node has a record that allows it all it is offered."""


# --- nodes that accept every attempt ---


async def patient_node(address: str, token: str) -> None:
    import grpc.aio

    from holdfast.identity import tokens
    from holdfast.identity.keys import NodeKey, node_id
    from holdfast.identity.proof import prove
    from holdfast.model import Hardware, Resources, Result
    from holdfast.model.messages import Discard, Held, HeldPhase, Hello, Load, Ping, Pong, Report, Start
    from holdfast.wire import convert
    from holdfast.wire.limits import client_options
    from holdfast.wire.node_pb2_grpc import NodeLinkStub

    ticket, key, node = tokens.parse(token), NodeKey.make(), node_id(uuid4().hex)
    room = Resources(1_000_000, 4_000_000, 10_000_000)
    hello = Hello(node, "bench", key.public_hex, "0.1.0", Hardware(total=room), room, "bubblewrap", token_id=ticket.id)
    held: dict[str, Held] = {}
    news: list[Held] = []
    async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
        call = NodeLinkStub(channel).Control()
        challenge = convert.challenge_from_frame(await call.read())
        signature = prove(key, challenge.nonce, node, "bench", "")
        await call.write(convert.hello_to_frame(hello, challenge.protocol, signature, ticket.secret))
        convert.answer_from_frame(await call.read())
        print("joined", flush=True)
        seq = 0
        writing = asyncio.Lock()  # a stream takes one message at a time

        async def say(message: Report | Pong) -> None:
            async with writing:
                await call.write(convert.node_to_frame(message))

        async def report() -> None:
            nonlocal seq
            last_full = 0.0
            while True:
                await asyncio.sleep(0.1)
                full = time.monotonic() - last_full >= (1.0 if held else 30.0)
                if full or news:
                    last_full = time.monotonic() if full else last_full
                    said = tuple(held.values()) if full else tuple(news)
                    news.clear()
                    seq += 1
                    await say(Report(seq, full, said, Load()))

        reporting = asyncio.create_task(report())
        try:
            while hasattr(frame := await call.read(), "WhichOneof"):
                message = convert.orchestrator_from_frame(frame)
                if isinstance(message, Ping):
                    await say(Pong(message.nonce))
                elif isinstance(message, Start):
                    held[message.attempt] = Held(message.attempt, message.fence, HeldPhase.PREPARING)
                    if message.spec.name == WARM:
                        done = Result(sha256(b"").hexdigest(), 0)
                        held[message.attempt] = Held(message.attempt, message.fence, HeldPhase.FINISHED, done)
                    news.append(held[message.attempt])
                elif isinstance(message, Discard):
                    held.pop(message.attempt, None)
                    news.append(Held(message.attempt, message.fence, HeldPhase.GONE))
        finally:
            reporting.cancel()


async def patient_nodes(address: str, token: str) -> None:
    await asyncio.gather(*(patient_node(address, token) for _ in range(NODES)))


# --- measuring ---


class Network:
    """An orchestrator and its nodes, as processes, in a separate folder."""

    def __init__(self, store: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.postgres = None
        url = []
        if store == "postgresql":
            import pgserver

            self.postgres = pgserver.get_server(Path(self.folder.name) / "pg")
            url = ["--store", self.postgres.get_uri().replace("postgresql://", "postgresql+psycopg://")]
        env = {**os.environ, "HOLDFAST_HOME": self.folder.name}
        command = [sys.executable, "-m", "holdfast.cli", "up", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", *url]
        self.log = (Path(self.folder.name) / "up.log").open("w")
        self.orchestrator = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)
        data = Path(self.folder.name) / "orchestrator"
        deadline = time.monotonic() + 60
        while not (data / "endpoint.json").exists():
            if time.monotonic() > deadline:
                raise SystemExit((Path(self.folder.name) / "up.log").read_text())
            time.sleep(0.05)
        endpoint = json.loads((data / "endpoint.json").read_text())
        self.url = endpoint["url"]
        self.headers = {"Authorization": f"Bearer {(data / 'admin.token').read_text().strip()}"}
        token = httpx.post(f"{self.url}/v1/tokens", headers=self.headers, json={"uses": -1}).json()["token"]
        swarm = [sys.executable, __file__, "--swarm", endpoint["nodes"]]
        self.nodes = subprocess.Popen(swarm, env={**env, "HOLDFAST_TOKEN": token}, stdout=subprocess.PIPE, text=True)
        assert self.nodes.stdout is not None
        for _ in range(NODES):
            assert self.nodes.stdout.readline() == "joined\n"
        self._warm()

    def _warm(self) -> None:
        """Give every node a record."""
        with httpx.Client(base_url=self.url, headers=self.headers, timeout=60) as client:
            for _ in range(0, WARM_JOBS, 200):
                jobs = [{**a_request(), "name": WARM} for _ in range(200)]
                client.post("/v1/jobs/batch", json=jobs).raise_for_status()
            live = ("queued", "assigned", "preparing", "running", "uploading")
            while any(client.get("/v1/jobs", params={"phase": phase, "limit": 1}).json()["jobs"] for phase in live):
                time.sleep(0.1)

    def busy_s(self) -> float:
        """Processor time the orchestrator has used so far."""
        used = psutil.Process(self.orchestrator.pid).cpu_times()
        return used.user + used.system

    def close(self) -> None:
        for child in (self.nodes, self.orchestrator):
            child.kill()
            child.wait()
        if self.postgres is not None:
            self.postgres.cleanup()
        self.folder.cleanup()


REQUEST = {"argv": ["true"], "cpu_milli": 100, "memory_mib": 64, "disk_mib": 64}


def a_request() -> dict[str, object]:
    return {**REQUEST, "key": secrets.token_hex(16)}


def placed(view: dict[str, object]) -> bool:
    return view["phase"] in ("assigned", "preparing")


def single(network: Network, jobs: int, connections: int) -> tuple[float, list[float]]:
    def submit_some(count: int) -> list[float]:
        times = []
        with httpx.Client(base_url=network.url, headers=network.headers) as client:
            for _ in range(count):
                began = time.perf_counter()
                answer = client.post("/v1/jobs", json=a_request())
                times.append(time.perf_counter() - began)
                assert answer.status_code == 201 and placed(answer.json()), answer.text
        return times

    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as pool:
        times = [t for part in pool.map(submit_some, [jobs // connections] * connections) for t in part]
    return len(times) / (time.perf_counter() - began), times


def batches(network: Network, jobs: int, size: int, connections: int) -> tuple[float, list[float]]:
    bodies = [json.dumps([a_request() for _ in range(size)]) for _ in range(jobs // size)]

    def submit_some(mine: list[str]) -> list[float]:
        times = []
        with httpx.Client(base_url=network.url, headers=network.headers, timeout=60) as client:
            for body in mine:
                began = time.perf_counter()
                answer = client.post("/v1/jobs/batch", content=body, headers={"Content-Type": "application/json"})
                times.append(time.perf_counter() - began)
                views = answer.json()
                assert len(views) == size and all(placed(v) for v in views), answer.text[:300]
        return times

    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as pool:
        parts = [bodies[first::connections] for first in range(connections)]
        times = [t for part in pool.map(submit_some, parts) for t in part]
    return size * len(times) / (time.perf_counter() - began), times


def measure(store: str, jobs: int, batch: int) -> list[dict[str, object]]:
    rows = []
    network = Network(store)
    try:
        cases: list[tuple[str, int, Callable[[int], tuple[float, list[float]]]]] = [
            ("single, 1 connection", jobs // 8, lambda count: single(network, count, 1)),
            (f"single, {CONNECTIONS} connections", jobs // 4, lambda count: single(network, count, CONNECTIONS)),
            (f"batches of {batch}, 1 connection", jobs, lambda count: batches(network, count, batch, 1)),
            (f"batches of {batch}, 4 connections", jobs, lambda count: batches(network, count, batch, 4)),
        ]
        for name, count, run in cases:
            busy_before = network.busy_s()
            rate, times = run(count)
            busy = network.busy_s() - busy_before
            times.sort()
            rows.append({
                "store": store, "case": name, "jobs_per_s": round(rate),
                "p50_ms": round(1e3 * statistics.median(times), 1),
                "p99_ms": round(1e3 * times[int(len(times) * 0.99)], 1),
                "cpu_ms_per_job": round(1e3 * busy / count, 2),
                "path": "HTTP, loopback", "tls": False, "fsync": True, "isolation": "none (nothing runs)",
                "nodes": NODES,
            })  # fmt: skip
    finally:
        network.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--stores", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--swarm", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.swarm:
        asyncio.run(patient_nodes(args.swarm, os.environ["HOLDFAST_TOKEN"]))
        return 0
    rows = [row for store in args.stores for row in measure(store, args.jobs, args.batch)]
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
        return 0
    print(f"{'store':>11} {'case':>30} {'jobs/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'CPU ms/job':>11}")
    for r in rows:
        print(
            f"{r['store']:>11} {r['case']:>30} {r['jobs_per_s']:>8,} {r['p50_ms']:>8} {r['p99_ms']:>8}"
            f" {r['cpu_ms_per_job']:>11}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
