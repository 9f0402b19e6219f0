"""Keeps what a release says on the wire: the bytes of every message, what that release read in them, and its protocol.

    git archive COMMIT src | tar -x -C FOLDER
    PYTHONPATH=FOLDER/src .venv/bin/python tests/migration/record_wire.py

writes tests/migration/wire/VERSION.json, the baseline for the next release. Run once per release, and never again for
an old one.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.model import (
    Failure,
    FailureCode,
    Gpu,
    Hardware,
    JobSpec,
    Need,
    Recovery,
    Resources,
    Result,
)
from holdfast.model.ids import attempt_id, job_id
from holdfast.model.messages import (
    Discard,
    Go,
    Held,
    HeldPhase,
    Hello,
    Leaving,
    Load,
    Offers,
    Ping,
    Pong,
    Progress,
    Refusal,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)
from holdfast.wire import convert
from holdfast.wire import node_pb2 as pb

JOB = job_id("ada", "one")
ATTEMPT = attempt_id(JOB, 3)
NODE = "node_" + "0123456789abcdef" * 2
ROOM = Resources(4_000, 16_384, 100_000, 1)
HELD = (
    Held(ATTEMPT, 7, HeldPhase.RUNNING, progress=Progress("run", 3, 9, 1_200, 300, 4_096)),
    Held(attempt_id(JOB, 1), 5, HeldPhase.FINISHED, result=Result("ab" * 32, 12, 0)),
    Held(attempt_id(JOB, 2), 6, HeldPhase.FINISHED, failure=Failure(FailureCode.OOM_JOB, "it wanted more")),
)
HELLO = Hello(
    node=NODE,
    instance="an-instance",
    public_key="cd" * 32,
    version=holdfast.__version__,
    hardware=Hardware(total=ROOM, gpus=(Gpu("A model", 24_000),)),
    offered=ROOM,
    isolation="bubblewrap",
    name="a machine",
    site="a site",
    held=HELD,
    epoch_seen=4,
)
SPEC = JobSpec(argv=("python3", "train.py"), name="a job", env={"SEED": "7"}, need=Need(ROOM), recovery=Recovery.RESUME)
FROM_NODES = (
    Report(12, True, HELD, Load(250, 900, 50_000, "too hot"), (ATTEMPT,)),
    Pong(77),
    Leaving(30_000, True),
    Offers(ROOM, True, 5_000, "paused by its operator"),
)
FROM_ORCHESTRATORS = (
    Start(4, ATTEMPT, 7, JOB, SPEC, 60_000, 15_000, "ef" * 32),
    Go(4, ATTEMPT, 7, 12),
    Discard(4, ATTEMPT, 7, "another one finished", True),
    Renewed(4, 12, (ATTEMPT,)),
    Ping(4, 77),
    Save(4, ATTEMPT, 7),
    Refusal("token_expired", "the token has expired", True),
)


def main() -> None:
    kept: dict[str, Any] = {}

    def keep(name: str, frame: Any, means: Any) -> None:
        kept[name] = {"bytes": frame.SerializeToString().hex(), "means": msgspec.to_builtins(means)}

    challenge = convert.challenge_to_frame(b"n" * 32, holdfast.__version__)
    keep("challenge", challenge, convert.challenge_from_frame(challenge))
    hello = convert.hello_to_frame(HELLO, 1, b"s" * 64)
    keep("hello", hello, convert.hello_from_frame(hello).hello)
    welcome = convert.welcome_to_frame(Welcome(NODE, 4, 30_000, 1_000, 15_000, 60_000, 5_000), "k" * 43, "http://:7422")
    admitted = convert.answer_from_frame(welcome)
    assert isinstance(admitted, convert.Admitted)
    keep("welcome", welcome, admitted.welcome)
    for message in FROM_NODES:
        frame = convert.node_to_frame(message)
        keep(type(message).__name__.lower(), frame, convert.node_from_frame(frame))
    for message in FROM_ORCHESTRATORS:
        frame = convert.orchestrator_to_frame(message)
        keep(type(message).__name__.lower(), frame, convert.orchestrator_from_frame(frame))
    piece = convert.LogPiece(ATTEMPT, 7, "stderr", 40, b"a line\n")
    keep("logpiece", convert.chunk_to_wire(piece), convert.chunk_from_wire(convert.chunk_to_wire(piece)))
    receipt = convert.LogDurable(ATTEMPT, "stderr", 47, "")
    keep("logdurable", convert.ack_to_wire(receipt), convert.ack_from_wire(convert.ack_to_wire(receipt)))

    target = Path(__file__).parent / "wire" / f"{holdfast.__version__}.json"
    target.parent.mkdir(exist_ok=True)
    assert not target.exists(), f"{target} is there, and evidence is not remade"
    protocol = pb.DESCRIPTOR.serialized_pb.hex()
    target.write_text(json.dumps({"protocol": protocol, "messages": kept}, indent=1) + "\n")
    print(f"{target}: {len(kept)} messages from {holdfast.__file__}")


if __name__ == "__main__":
    main()
