"""The kernel: everything the orchestrator decides, as a pure state machine.

    decision = kernel.apply(event, now)

`event` is what happened, `now` is the time; `decision` holds row changes, sends, and an answer. The kernel reads no
clock, opens no socket and draws no random number that its own state does not determine.

Duties of whoever drives it:

1. Make `decision.changes` durable before anything of `sends` or `answer` leaves. `CommitLoop` keeps this order.
2. If a commit fails, drop the kernel and build a new one with `Kernel.load` from the store, under a higher epoch;
   give it `Led` first.
3. Never let `now` go back; it may stand still.
4. Send a `Tick` when `next_due()` is reached, and before anything else a `Tick(late_ms)` when the driver itself was
   frozen, suspended or away longer than `late_tolerance_ms`.
5. Give a `NodeJoined` only for a session whose peer proved that it holds the key it names. Report the end of each
   session once with `NodeBroke`, also when the kernel asked for it.
6. Answer every `Verify` with `Verified`, as soon as it is known; a lost one is asked for again.
7. Deliver sends of one session in order, or end the session. A send to a session that is gone is dropped.

Rooms: `contenders` (offers, takeover, acceptance), `health` (suspicion, quarantine, probation), `recovery` (what
follows a failure; deadlines), `reconcile` (what a node reports against what should be), `membership` (joining,
leaving), `placement` and `queue` (where, and who is next), `checkpoints` (what is saved), `explain` (why not yet),
`checking` (what would become of a job that is not sent), `world` (the state), `commit` (the order of deciding, storing
and acting). They say in `lifecycle` what happens to an attempt or a job; mechanisms answer, in the order of its list:
`estimates` with `duration_history` (when a job starts and ends, and how often that was right), `poison` (which jobs
bring machines down), `straggling` (who gets nowhere, and beside whom another attempt starts), `moving` (a person chose
the machine), `reservation` (room held for large jobs), `files` (what is kept of an ended job).
"""

from holdfast.kernel.commit import CommitBatch, CommitLoop
from holdfast.kernel.decision import Decision
from holdfast.kernel.kernel import Kernel

__all__ = ["CommitBatch", "CommitLoop", "Decision", "Kernel"]
