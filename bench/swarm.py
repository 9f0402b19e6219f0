"""Many node clients in one process, for measuring the orchestrator: `bench/nodes.py` starts several of these.

A client connects, proves its key, keeps a control and a bulk stream and sends heartbeats as a shipped node does, with
the delays of `holdfast.node.link`. It holds no work. On standard output it prints `first <epoch> <seconds>` and `all
<epoch> <seconds>` when the first and the last of its clients is welcomed under an epoch, with the time on
CLOCK_MONOTONIC; on standard error, the errors until then.

    HOLDFAST_TOKEN=… python bench/swarm.py HOST:PORT COUNT SEED [--dialling 16] [--churn 0.01]
"""

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from collections import Counter
from uuid import uuid4

import grpc.aio
import uvloop

from holdfast.identity import tokens
from holdfast.identity.certificates import SERVER_NAME, client_credentials, fetch_pinned
from holdfast.identity.keys import NodeKey, node_id
from holdfast.identity.proof import prove
from holdfast.model import Hardware, Resources
from holdfast.model.messages import Hello, Load, Ping, Pong, Refusal, Report
from holdfast.node.core.redial import CHALLENGE_MS_MAX, WELCOME_MS_MAX, redial_ms
from holdfast.wire import convert
from holdfast.wire.limits import BULK_KEY_METADATA, client_options
from holdfast.wire.node_pb2_grpc import NodeLinkStub

ROOM = Resources(4_000, 8_192, 100_000)


class Swarm:
    def __init__(self, address: str, token: str, count: int, seed: int, dialling: int, churn: float) -> None:
        self.address = address
        self.ticket = tokens.parse(token)
        host, _, port = address.rpartition(":")
        self.credentials = client_credentials(fetch_pinned(host, int(port), self.ticket.pin))
        self.count = count
        self.rng = random.Random(seed)
        self.churn = churn
        """Share of the nodes that leave and come back in a minute."""
        self.first_dials = asyncio.Semaphore(dialling)
        """A fleet is not switched on at one moment. Clients that joined before reconnect on their own schedule, as
        nodes do."""
        self.welcomed: Counter[int] = Counter()
        self.troubles: Counter[str] = Counter()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as living:
            for _ in range(self.count):
                living.create_task(Client(self).live())

    def welcome(self, epoch: int) -> None:
        self.welcomed[epoch] += 1
        if self.welcomed[epoch] == 1:
            print(f"first {epoch} {time.monotonic():.3f}", flush=True)
        if self.welcomed[epoch] == self.count:
            print(f"all {epoch} {time.monotonic():.3f}", flush=True)
            if self.troubles:
                print(f"swarm: failed dials and broken streams: {dict(self.troubles)}", file=sys.stderr, flush=True)


class Client:
    def __init__(self, swarm: Swarm) -> None:
        self.swarm = swarm
        self.key, self.id = NodeKey.make(), node_id(uuid4().hex)
        self.epoch = 0
        """The epoch of the last welcome; 0: never welcomed."""
        self.failures = 0

    async def live(self) -> None:
        while True:
            trouble = ""
            try:
                await self._session()
            except (grpc.aio.AioRpcError, TimeoutError, ConnectionError, asyncio.InvalidStateError) as wrong:
                trouble = wrong.code().name if isinstance(wrong, grpc.aio.AioRpcError) else str(wrong) or "time-out"
                self.swarm.troubles[trouble] += 1
            self.failures += 1
            wait_ms = redial_ms(self.failures, 0, trouble == "refused: busy", self.swarm.rng.getrandbits(64))
            await asyncio.sleep(wait_ms / 1000)

    async def _session(self) -> None:
        swarm = self.swarm
        options = client_options(SERVER_NAME)
        async with grpc.aio.secure_channel(swarm.address, swarm.credentials, options=options) as channel:
            stub = NodeLinkStub(channel)
            if self.epoch:
                call, bulk_key = await self._join(stub)
            else:
                async with swarm.first_dials:
                    call, bulk_key = await self._join(stub)
            bulk = stub.Bulk(metadata=((BULK_KEY_METADATA, bulk_key),))
            beating = asyncio.create_task(self._beat(call))
            lifetime_s = swarm.rng.expovariate(swarm.churn / 60) if swarm.churn else None
            try:
                async with asyncio.timeout(lifetime_s):
                    await self._listen(call)
            except TimeoutError:
                return
            finally:
                beating.cancel()
                bulk.cancel()
                call.cancel()

    async def _join(self, stub: NodeLinkStub) -> tuple[grpc.aio.StreamStreamCall, str]:
        call = stub.Control()
        async with asyncio.timeout(CHALLENGE_MS_MAX / 1000):
            challenge = convert.challenge_from_frame(await self._heard(call))
        if isinstance(challenge, Refusal):
            raise ConnectionError(f"refused: {challenge.code}")
        instance = f"bench-{os.getpid()}"
        signature = prove(self.key, challenge.nonce, self.id, instance, self.swarm.ticket.pin)
        hello = Hello(self.id, instance, self.key.public_hex, "0.1.0", Hardware(total=ROOM), ROOM, "bubblewrap",
                      token_id=self.swarm.ticket.id)  # fmt: skip
        await call.write(convert.hello_to_frame(hello, challenge.protocol, signature, self.swarm.ticket.secret))
        async with asyncio.timeout(WELCOME_MS_MAX / 1000):
            admitted = convert.answer_from_frame(await self._heard(call))
        if isinstance(admitted, Refusal):
            raise ConnectionError(f"refused: {admitted.code}")
        if admitted.welcome.epoch != self.epoch:
            self.epoch = admitted.welcome.epoch
            self.swarm.welcome(self.epoch)
        self.failures = 0
        self.heartbeat_s = admitted.welcome.heartbeat_ms / 1000
        return call, admitted.bulk_key

    async def _heard(self, call: grpc.aio.StreamStreamCall) -> object:
        frame = await call.read()
        if frame is grpc.aio.EOF:
            raise ConnectionError("the stream ended")
        return frame

    async def _beat(self, call: grpc.aio.StreamStreamCall) -> None:
        await asyncio.sleep(self.swarm.rng.uniform(0, self.heartbeat_s))
        seq = 0
        while True:
            seq += 1
            await call.write(convert.node_to_frame(Report(seq, True, (), Load(cpu_permille=100))))
            await asyncio.sleep(self.heartbeat_s)

    async def _listen(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            message = convert.orchestrator_from_frame(await self._heard(call))
            if isinstance(message, Ping):
                await call.write(convert.node_to_frame(Pong(message.nonce)))


async def main() -> None:
    # Nodes have machines of their own: here they should not take processor time from the orchestrator, and a process of
    # a thousand nodes should not spend a third of its time on garbage collection that a single node does not need.
    os.nice(5)
    gc.disable()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--dialling", type=int, default=16)
    parser.add_argument("--churn", type=float, default=0.01)
    args = parser.parse_args()
    swarm = Swarm(args.address, os.environ["HOLDFAST_TOKEN"], args.count, args.seed, args.dialling, args.churn)
    await swarm.run()


if __name__ == "__main__":
    uvloop.run(main())
