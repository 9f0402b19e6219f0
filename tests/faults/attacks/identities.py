"""Invents identities and dials in at the node port with each, one after the other:
`python -m attacks.identities HOST:PORT SECONDS COUNT TOKEN [NODE]`. TOKEN may be empty. NODE: claims this identity each
time, with a key of its own. Hangs up after each answer. Prints how often it got which one, as JSON; `welcome`: it was
let in.
"""

import ipaddress
import json
import queue
import sys
import time
from collections import Counter
from uuid import uuid4

import grpc

from holdfast.identity import tokens
from holdfast.identity.keys import NodeKey, node_id
from holdfast.identity.proof import prove
from holdfast.model import Hardware, NodeId, Resources
from holdfast.model.messages import Hello, Refusal
from holdfast.wire import convert
from holdfast.wire import node_pb2 as pb
from holdfast.wire.node_pb2_grpc import NodeLinkStub

ROOM = Resources(1_000, 1_000, 1_000)
ANSWER_S = 60.0


def answer(stub: NodeLinkStub, token: str, claimed: str) -> str:
    said: queue.Queue[pb.NodeFrame | None] = queue.Queue()
    call = stub.Control(iter(said.get, None), timeout=ANSWER_S)  # pyright: ignore[reportArgumentType]
    try:
        challenge = convert.challenge_from_frame(next(call))
        if isinstance(challenge, Refusal):
            return challenge.code
        key, node = NodeKey.make(), NodeId(claimed) if claimed else node_id(uuid4().hex)
        ticket = tokens.parse(token) if token else None
        hello = Hello(
            node, uuid4().hex[:16], key.public_hex, "test", Hardware(total=ROOM), ROOM, "none",
            token_id=ticket.id if ticket else "",
        )  # fmt: skip
        signature = prove(key, challenge.nonce, node, hello.instance, "")
        said.put(convert.hello_to_frame(hello, challenge.protocol, signature, ticket.secret if ticket else b""))
        heard = convert.answer_from_frame(next(call))
        return heard.code if isinstance(heard, Refusal) else "welcome"
    except (grpc.RpcError, StopIteration):
        return "cut"
    finally:
        said.put(None)
        call.cancel()


def main() -> None:
    address, seconds, count, token, *claimed = sys.argv[1:]
    assert ipaddress.ip_address(address.rpartition(":")[0]).is_loopback, "attacks go to this machine only"
    heard: Counter[str] = Counter()
    until = time.monotonic() + float(seconds)
    with grpc.insecure_channel(address) as channel:
        stub = NodeLinkStub(channel)  # pyright: ignore[reportArgumentType]
        while heard.total() < int(count) and time.monotonic() < until:
            heard[answer(stub, token, claimed[0] if claimed else "")] += 1
    print(json.dumps(heard))


if __name__ == "__main__":
    main()
