"""A malicious node: its messages differ from those of its core. The orchestrator must not be deceived."""

from enum import StrEnum
from random import Random

import msgspec

from holdfast.kernel.events import Checkpointed
from holdfast.model import Failure, FailureCode, Result
from holdfast.model.messages import Held, HeldPhase, Leaving, Offers, Pong, Report

FOUND_OUT = 0.05
"""How often a report of a node that makes up checkpoints also has a result that verification refuses."""


class Lie(StrEnum):
    OTHER_DIGEST = "another digest"
    EARLY_PHASES = "phases never reached"
    REFUSED_RESULTS = "results that were refused"
    MADE_UP_RESULTS = "results out of nothing"
    MADE_UP_CHECKPOINTS = "checkpoints out of nothing"
    STRANGERS_FILES = "files that it never sent"
    NO_OFFERS = "nothing of what it was offered"
    BLAMED_OWNERS = "that every program failed"


class Liar:
    def __init__(self, kind: Lie, random: Random) -> None:
        self.kind = kind
        self.told = 0
        self._random = random
        self._insisted: dict[tuple[str, int], Held] = {}

    @property
    def saves_at_will(self) -> bool:
        """Whether it saves what nobody computed, and whenever it likes."""
        return self.kind is Lie.MADE_UP_CHECKPOINTS

    def saved(self, honest: Checkpointed) -> Checkpointed:
        """The checkpoint that it delivers instead."""
        if self.kind is not Lie.MADE_UP_CHECKPOINTS:
            return honest
        self.told += 1
        return msgspec.structs.replace(honest, manifest=f"{self._random.getrandbits(256):064x}")

    def twist(self, message: Report | Pong | Leaving | Offers) -> Report | Pong | Leaving | Offers:
        if not isinstance(message, Report):
            return message
        held = tuple(self._twisted(item) for item in message.held)
        if self.kind is Lie.NO_OFFERS:
            held = tuple(item for item in held if item.phase not in (HeldPhase.PREPARING, HeldPhase.READY))
        if self.kind is Lie.REFUSED_RESULTS and message.full:
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
            case Lie.OTHER_DIGEST, HeldPhase.FINISHED if item.result is not None:
                lie = msgspec.structs.replace(item, result=made_up)
            case Lie.EARLY_PHASES, HeldPhase.PREPARING | HeldPhase.READY:
                lie = msgspec.structs.replace(item, phase=HeldPhase.RUNNING)
            case Lie.EARLY_PHASES, HeldPhase.RUNNING:
                lie = msgspec.structs.replace(item, phase=HeldPhase.UPLOADING)
            case Lie.BLAMED_OWNERS, phase if phase not in (HeldPhase.REFUSED, HeldPhase.GONE):
                failed = Failure(FailureCode.EXIT_CODE, "made up", exit_code=1)
                lie = msgspec.structs.replace(item, phase=HeldPhase.FINISHED, result=None, failure=failed)
            case Lie.STRANGERS_FILES, HeldPhase.FINISHED if item.result is not None:
                lie = msgspec.structs.replace(item, result=msgspec.structs.replace(item.result, manifest="a" * 64))
            case Lie.MADE_UP_CHECKPOINTS, HeldPhase.RUNNING if self._random.random() < FOUND_OUT:
                # Sooner or later it says something that is found out.
                lie = msgspec.structs.replace(item, phase=HeldPhase.FINISHED, result=made_up)
            case Lie.MADE_UP_RESULTS, HeldPhase.RUNNING:
                lie = msgspec.structs.replace(item, phase=HeldPhase.FINISHED, result=made_up)
            case _:
                return item
        self.told += 1
        return lie
