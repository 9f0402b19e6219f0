"""How many nodes one orchestrator holds: real gRPC over TLS, production heartbeats, 1 % churn a minute.

Starts an orchestrator as a process of its own with the shipped defaults, then swarms of node clients (each with its own
connection, its control and its bulk stream, its own key and identity, a heartbeat every 30 s). After all have joined it
watches the orchestrator for a while and reports its processor and memory use per node.
Path: gRPC over loopback; TLS; SQLite with fsync (joins and churn are commits); no jobs.

    python bench/nodes.py [--nodes 5000] [--watch 60] [--json]
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HEARTBEAT_S = 30.0
CHURN_PER_MINUTE = 0.01
SWARM_NODES = 1_250


# --- the swarm: many nodes in one process ---


class SwarmNode:
    def __init__(self, address: str, ticket, pem: bytes, rng: random.Random) -> None:
        from holdfast.identity.keys import NodeKey, new_node_id

        self.address, self.ticket, self.pem, self.rng = address, ticket, pem, rng
        self.key, self.id = NodeKey.make(), new_node_id()
        self.joined = asyncio.Event()

    async def live(self, gate: asyncio.Semaphore) -> None:
        while True:
            try:
                await self._session(gate)
            except asyncio.CancelledError:
                raise
            except Exception as wrong:
                print(f"swarm: {type(wrong).__name__}: {str(wrong)[:200]}", file=sys.stderr)
            self.joined.clear()
            await asyncio.sleep(self.rng.uniform(0.2, 2))

    async def _session(self, gate: asyncio.Semaphore) -> None:
        import grpc.aio

        from holdfast.identity.certificates import SERVER_NAME, client_credentials
        from holdfast.identity.proof import prove
        from holdfast.model import Hardware, Resources
        from holdfast.model.messages import Hello, Load, Ping, Pong, Report
        from holdfast.wire import convert
        from holdfast.wire.limits import BULK_KEY_METADATA, client_options
        from holdfast.wire.node_pb2_grpc import NodeLinkStub

        room = Resources(4_000, 8_192, 100_000)
        hello = Hello(self.id, "bench", self.key.public_hex, "0.1.0", Hardware(total=room), room, "bubblewrap",
                      token_id=self.ticket.id)  # fmt: skip
        credentials = client_credentials(self.pem)
        async with grpc.aio.secure_channel(self.address, credentials, options=client_options(SERVER_NAME)) as channel:
            stub = NodeLinkStub(channel)
            call = stub.Control()
            async with gate:
                challenge = convert.challenge_from_frame(await call.read())
                signature = prove(self.key, challenge.nonce, self.id, "bench", self.ticket.pin)
                await call.write(convert.hello_to_frame(hello, challenge.protocol, signature, self.ticket.secret))
                admitted = convert.answer_from_frame(await call.read())
            bulk = stub.Bulk(metadata=((BULK_KEY_METADATA, admitted.bulk_key),))
            self.joined.set()

            async def beat() -> None:
                seq = 0
                await asyncio.sleep(self.rng.uniform(0, HEARTBEAT_S))
                while True:
                    seq += 1
                    await call.write(convert.node_to_frame(Report(seq, True, (), Load(cpu_permille=100))))
                    await asyncio.sleep(HEARTBEAT_S)

            beating = asyncio.create_task(beat())
            lifetime = self.rng.expovariate(CHURN_PER_MINUTE / 60)
            try:
                async with asyncio.timeout(lifetime):
                    while True:
                        frame = await call.read()
                        if not hasattr(frame, "WhichOneof"):
                            return
                        message = convert.orchestrator_from_frame(frame)
                        if isinstance(message, Ping):
                            await call.write(convert.node_to_frame(Pong(message.nonce)))
            except TimeoutError:
                pass
            finally:
                beating.cancel()
                bulk.cancel()
                call.cancel()


async def swarm(address: str, token: str, count: int, seed: int) -> None:
    from holdfast.identity import tokens
    from holdfast.identity.certificates import fetch_pinned

    ticket = tokens.parse(token)
    host, _, port = address.rpartition(":")
    pem = fetch_pinned(host, int(port), ticket.pin)
    rng = random.Random(seed)
    gate = asyncio.Semaphore(16)
    nodes = [SwarmNode(address, ticket, pem, random.Random(rng.random())) for _ in range(count)]
    tasks = [asyncio.create_task(node.live(gate)) for node in nodes]
    for node in nodes:
        await node.joined.wait()
    print("joined", flush=True)
    await asyncio.gather(*tasks)


# --- the measurement ---


def measure(count: int, watch_s: float) -> dict[str, object]:
    from holdfast.client import Client

    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HOLDFAST_HOME": folder}
        up = [sys.executable, "-m", "holdfast.cli", "up", "--http", "127.0.0.1:0", "--listen", "0.0.0.0:0"]
        log = (Path(folder) / "up.log").open("w")
        orchestrator = subprocess.Popen(up, env=env, stdout=log, stderr=log)
        swarms: list[subprocess.Popen[str]] = []
        try:
            endpoint = Path(folder) / "orchestrator" / "endpoint.json"
            deadline = time.monotonic() + 30
            while not endpoint.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.environ["HOLDFAST_HOME"] = folder
            client = Client.find()
            token = client.tokens.create().token
            port = json.loads(endpoint.read_text())["nodes"].rpartition(":")[2]
            process = psutil.Process(orchestrator.pid)
            empty_mib = process.memory_info().rss / 2**20
            began = time.monotonic()
            left, seed = count, 1
            while left > 0:
                size = min(left, SWARM_NODES)
                command = [
                    sys.executable,
                    __file__,
                    "--swarm",
                    f"127.0.0.1:{port}",
                    "--nodes",
                    str(size),
                    "--seed",
                    str(seed),
                ]
                swarms.append(
                    subprocess.Popen(command, env={**env, "HOLDFAST_TOKEN": token}, stdout=subprocess.PIPE, text=True)
                )
                left, seed = left - size, seed + 1
            for child in swarms:
                assert child.stdout is not None and child.stdout.readline() == "joined\n", "a swarm did not join"
            joined_s = time.monotonic() - began
            time.sleep(5)
            cpu_before, at = process.cpu_times(), time.monotonic()
            time.sleep(watch_s)
            cpu_after, watched = process.cpu_times(), time.monotonic() - at
            rss_mib = process.memory_info().rss / 2**20
            views = client.nodes.list()
            connected = sum(1 for n in views if n.connected)
            cpu = (cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system) / watched
            return {
                "nodes_asked": count, "nodes_connected": connected, "joins_per_s": round(count / joined_s, 1),
                "cpu_percent_of_core": round(100 * cpu, 1),
                "cpu_us_per_node_s": round(1e6 * cpu / max(1, connected), 1),
                "rss_mib": round(rss_mib), "kib_per_node": round((rss_mib - empty_mib) * 1024 / max(1, connected), 1),
                "watched_s": round(watched), "heartbeat_s": HEARTBEAT_S, "churn_per_minute": CHURN_PER_MINUTE,
                "path": "gRPC, loopback", "tls": True, "fsync": True, "isolation": "none (no jobs)", "store": "sqlite",
            }  # fmt: skip
        finally:
            for child in [*swarms, orchestrator]:
                child.kill()
                child.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--watch", type=float, default=60)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--swarm", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.swarm:
        asyncio.run(swarm(args.swarm, os.environ["HOLDFAST_TOKEN"], args.nodes, args.seed))
        return 0
    row = measure(args.nodes, args.watch)
    if args.json:
        json.dump(row, sys.stdout, indent=2)
    else:
        for name, value in row.items():
            print(f"{name:>22}  {value}")
    return 0 if row["nodes_connected"] == args.nodes or row["nodes_connected"] >= 0.98 * args.nodes else 1


if __name__ == "__main__":
    sys.exit(main())
