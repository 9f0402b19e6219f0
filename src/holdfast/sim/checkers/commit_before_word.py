"""SPEC J14, DESIGN "commit, then act": nothing is sent or answered before the changes it depends on are durable; and
every command carries the epoch of the leader that committed them."""

from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import Taken, ToSession
from holdfast.model import Attempt, Entry, Job, job_of
from holdfast.model.messages import Command, Discard, Go, Start, Welcome
from holdfast.sim.watch import Rule


class CommitBeforeWord(Rule):
    def released(self, leader: str, batch: CommitBatch, epoch: int) -> None:
        store = self.scene.store
        if store.epoch != epoch:
            return
        for key, row in batch.rows.items():
            if not isinstance(row, Entry) and store.rows.get(key) != row:
                self.fail(f"{leader} acts on {key}, which is not durable")
        for send in batch.sends:
            if not isinstance(send, ToSession):
                continue
            if isinstance(send.message, Command | Welcome) and send.message.epoch != epoch:
                self.fail(f"{leader} leads with epoch {epoch} and speaks with epoch {send.message.epoch}")
            if isinstance(send.message, Start | Go | Discard):
                self._command(send.message)
        for _, answer in batch.answers:
            if isinstance(answer, Taken) and ("job", answer.job) not in store.rows:
                self.fail(f"{leader} says that {answer.job} stands, and it is not durable")

    def _command(self, command: Start | Go | Discard) -> None:
        rows = self.scene.store.rows
        attempt = rows.get(("attempt", command.attempt))
        match command:
            case Start() | Go():
                if not isinstance(attempt, Attempt) or attempt.fence != command.fence:
                    self.fail(f"{type(command).__name__} of {command.attempt} is sent, and no such attempt is durable")
                elif isinstance(command, Go) and not attempt.go:
                    self.fail(f"Go for {command.attempt} is sent before it is durable")
            case Discard(accepted=True):
                job = rows.get(("job", job_of(command.attempt)))
                if not isinstance(job, Job) or job.accepted != command.attempt:
                    self.fail(f"{command.attempt} is told that it won before that is durable")
            case _:
                pass
