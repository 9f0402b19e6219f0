"""The kernel: everything the orchestrator decides, as a pure state machine.

    decision = kernel.apply(event, now)

`event` is what happened, `now` is the time; `decision` holds row changes, sends, and an answer. The kernel reads no
clock, opens no socket and draws no random number that its own state does not determine.

Duties of the driver:

1. Make `decision.changes` durable before any of `sends` or the `answer` goes out. `CommitLoop` keeps this order.
2. If a commit fails, drop the kernel and build a new one with `Kernel.load` from the store, under a higher epoch;
   give it `Led` first.
3. Never let `now` go back; it may stand still.
4. Send a `Tick` when `next_due()` is reached, and before anything else a `Tick(late_ms)` when the driver itself was
   frozen, suspended or away longer than `late_tolerance_ms`.
5. Give a `NodeJoined` only for a session whose peer proved that it holds the key it names. Report the end of each
   session once with `NodeBroke`, even if the kernel requested it.
6. Answer every `Verify` with `Verified` and every `Inspect` with `Inspected` as soon as the outcome is known; a lost
   one is requested again.
7. Deliver sends of one session in order, or end the session. A send to a session that is gone is dropped.

Modules: `contenders` (offers, takeover, acceptance), `health` (suspicion, quarantine, probation), `recovery` (what
follows a failure; deadlines), `reconcile` (what a node reports against what it should hold), `membership` (joining,
leaving), `placement` (which nodes have room), `queue` (which job is next), `checkpoints` (what is saved),
`tainting` (what of it is not used any more), `explain`
(why a job waits), `checking` (what would happen to a job if it were submitted), `world` (the state), `commit` (the
order of deciding, storing and acting). They report to `lifecycle` what happens to an attempt or a job, and it calls
the mechanisms in the order of its list: `estimates` with `duration_history` (when a job starts and ends, and how often
that was right), `poison` (which jobs bring machines down), `straggling` (slow attempts, and second attempts beside
them), `moving` (moves that a person requests), `reservation` (room held for large jobs), `files` (how long files of
an ended job are kept). `health` and `recovery` are in that list too.
"""

from holdfast.kernel.commit import CommitBatch, CommitLoop
from holdfast.kernel.decision import Decision
from holdfast.kernel.kernel import Kernel

__all__ = ["CommitBatch", "CommitLoop", "Decision", "Kernel"]
