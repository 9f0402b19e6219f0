"""A node that lies: what it says differs from what its core would say. The orchestrator must not be fooled."""

from random import Random

import msgspec

from holdfast.model import Result
from holdfast.model.messages import Held, HeldPhase, Leaving, Offers, Pong, Report

LIES = (
    "another digest",
    "phases never reached",
    "results that were refused",
    "results out of nothing",
    "nothing of what it was offered",
)


class Liar:
    def __init__(self, kind: str, random: Random) -> None:
        self.kind = kind
        self.told = 0
        self._random = random
        self._insisted: dict[tuple[str, int], Held] = {}

    def twist(self, message: Report | Pong | Leaving | Offers) -> Report | Pong | Leaving | Offers:
        if not isinstance(message, Report):
            return message
        held = tuple(self._twisted(item) for item in message.held)
        if self.kind == "nothing of what it was offered":
            held = tuple(item for item in held if item.phase not in (HeldPhase.PREPARING, HeldPhase.READY))
        if self.kind == "results that were refused" and message.full:
            for item in held:
                if item.phase is HeldPhase.FINISHED:
                    self._insisted[item.attempt, item.fence] = item
            fresh = {(item.attempt, item.fence) for item in held if item.phase is not HeldPhase.GONE}
            held = tuple(
                item
                for item in held
                if (item.attempt, item.fence) not in self._insisted or (item.attempt, item.fence) in fresh
            )
            extra = [item for key, item in sorted(self._insisted.items()) if key not in fresh]
            self.told += len(extra)
            held += tuple(extra[-8:])
        return msgspec.structs.replace(message, held=held)

    def _twisted(self, item: Held) -> Held:
        made_up = Result("f" * 64, self._random.randrange(1, 1_000))
        match self.kind, item.phase:
            case "another digest", HeldPhase.FINISHED if item.result is not None:
                lie = msgspec.structs.replace(item, result=made_up)
            case "phases never reached", HeldPhase.PREPARING | HeldPhase.READY:
                lie = msgspec.structs.replace(item, phase=HeldPhase.RUNNING)
            case "phases never reached", HeldPhase.RUNNING:
                lie = msgspec.structs.replace(item, phase=HeldPhase.UPLOADING)
            case "results out of nothing", HeldPhase.RUNNING:
                lie = msgspec.structs.replace(item, phase=HeldPhase.FINISHED, result=made_up)
            case _:
                return item
        self.told += 1
        return lie
