"""Simulated users: they submit, move, stop and query, and repeat each request until they get an answer."""

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from holdfast.kernel.decision import Answer, Rejected, Taken
from holdfast.kernel.events import AnyEvent, CancelAsked, ExplainAsked, MoveAsked, Submitted
from holdfast.model import JobId
from holdfast.sim.plan import JobPlan

if TYPE_CHECKING:
    from holdfast.sim.scene import Scene

PATIENCE_MS = 3_000
"""A user repeats a request after this long without an answer."""


class People:
    def __init__(self, scene: "Scene") -> None:
        self.scene = scene
        self._random = scene.world.stream()
        self._open: set[int] = set()
        self._number = 0
        self.acknowledged: set[JobId] = set()
        self.refused: dict[JobId, Rejected] = {}

    @property
    def satisfied(self) -> bool:
        """Whether all requests have been answered."""
        return not self._open

    def begin(self) -> None:
        for job in self.scene.plan.jobs:
            self._number += 1
            self._open.add(self._number)
            self.scene.world.call_at(job.submit_at, self._submit, job, self._number)

    def restored(self) -> None:
        """The network has forgotten what was sent to it lately: they send it again, with the same key."""
        for job in self.scene.plan.jobs:
            if job.id in self.acknowledged and ("job", job.id) not in self.scene.store.rows:
                self.acknowledged.discard(job.id)
                self._number += 1
                self._open.add(self._number)
                self._submit(job, self._number)

    def insist(self, event: AnyEvent) -> None:
        """Repeat the request until it is answered."""
        self._number += 1
        self._open.add(self._number)
        self._ask(event, self._number, None)

    def _submit(self, job: JobPlan, number: int) -> None:
        spec_hash = sha256(msgspec.msgpack.encode(job.spec)).hexdigest()
        event = Submitted(job.id, job.owner, job.spec, spec_hash)
        if self._random.random() < 0.2:  # two programs of the user send it with the same key at the same moment
            self._ask(event, number, job)
        self._ask(event, number, job)

    def _ask(self, event: AnyEvent, number: int, job: JobPlan | None) -> None:
        """Each try has its own ticket; an answer to an earlier try counts as well."""
        if number not in self._open:
            return
        leader = self.scene.leader
        if leader is not None:
            leader.ask(event, lambda answer: self._answered(event, number, job, answer))
        self.scene.world.call_in(PATIENCE_MS, self._ask, event, number, job)

    def _answered(self, event: AnyEvent, number: int, job: JobPlan | None, answer: Answer | None) -> None:
        if answer is None or number not in self._open:
            return
        self._open.discard(number)
        if job is None:
            return
        match answer:
            case Taken():
                self.acknowledged.add(job.id)
                self.scene.watch.tell("acknowledged", job.id)
                if job.stop_at is not None:
                    self.scene.world.call_at(job.stop_at, self.insist, CancelAsked(job.id, "its owner"))
                for number, (at, node) in enumerate(job.moves):
                    event = MoveAsked(job.id, node, "its owner", key=f"move {number}")
                    self.scene.world.call_at(at, self.insist, event)
                    if self._random.random() < 0.3:  # the answer was lost, so it is repeated
                        self.scene.world.call_at(at + self._random.randrange(4_000), self.insist, event)
                if self._random.random() < 0.5:
                    at = self.scene.world.now + self._random.randrange(5_000)
                    self.scene.world.call_at(at, self.insist, ExplainAsked(job.id))
            case Rejected():
                self.scene.world.note(f"{job.id} is refused: {answer.says} [{answer.code}]")
                self.refused[job.id] = answer
            case _:
                pass
