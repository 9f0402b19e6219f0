"""A year of joins, losses, jobs, tokens and strangers, with the production kernel and a real store: memory, rows,
answers and work per event stay within bounds that do not depend on how old the network is."""

import gc
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from counted_calls import calls_of
from msgspec.structs import replace

from holdfast.kernel import world
from holdfast.kernel.commit import CommitLoop
from holdfast.kernel.decision import Deletions, Explanation, Rejected, Taken
from holdfast.kernel.events import (
    AnyEvent,
    CancelAsked,
    DeletionAsked,
    ExplainAsked,
    Led,
    NodeBroke,
    NodeJoined,
    NodeSaid,
    Submitted,
    Tick,
    TokenMade,
)
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    DAY_MS,
    Gpu,
    Hardware,
    Instant,
    JobSpec,
    JoinToken,
    Need,
    NodeId,
    Owner,
    Resources,
    Settings,
    TokenId,
    job_id,
)
from holdfast.model.messages import Hello, Leaving, Report
from holdfast.orchestrator.api.self_check import DELETED_JOB_BYTES_MAX
from holdfast.orchestrator.retention import START, look
from holdfast.state import Store

ROOM = Resources(4_000, 4_096, 10_000, 0)
SETTINGS = replace(Settings.lan(), open_join=True)
DAYS = 365
JOINS, JOBS, TOKENS, STRANGERS = 6, 8, 2, 20
"""On every day."""
KERNEL_BYTES_MAX, STORE_BYTES_MAX = 700_000, 2_500_000
"""What the kernel of this network takes in memory, and the store on disk beside what stays of deleted jobs, however old
the network is."""
REMEMBERED = 300
"""Ids of ended and of deleted rows that the kernel remembers; 20,000 each would be reached after years."""
HERE = NodeId("node_here")
GPU = Need(Resources(100, 100, 100, 1))


def hello(node: str, key: str = "", gpus: int = 0) -> Hello:
    room = replace(ROOM, gpus=gpus)
    hardware = Hardware(total=room, gpus=(Gpu("Old 1000", 80_000),) * gpus)
    return Hello(NodeId(node), "first", key or f"key of {node}", "0.1.0", hardware, room, "bubblewrap")


class Year:
    def __init__(self, folder: Path) -> None:
        self.store = Store.open(f"sqlite:///{folder}/state.db")
        self.epoch = self.store.take_lead("year")
        self.kernel = Kernel(SETTINGS)
        self.loop = CommitLoop(self.kernel)
        self.now = 1_700_000_000_000
        self.sessions = 0
        self.seq = 0
        self.tell(Led(self.epoch, 7))

    def tell(self, event: AnyEvent) -> Any:
        """The answer. The batch is committed with the others of the day."""
        self.loop.offer(event, Instant(self.now), 1)
        return self.loop._gathering.answers[-1][1]

    def commit(self) -> None:
        batch = self.loop.next_batch()
        assert batch is not None
        self.store.commit(list(batch.rows.values()), self.epoch)
        self.loop.committed(batch)

    def join(self, node: str, **more: Any) -> int:
        self.sessions += 1
        self.tell(NodeJoined(self.sessions, hello(node, **more)))
        return self.sessions

    def submit(self, key: str, need: Need | None = None) -> Any:
        spec = JobSpec(("true",), name=key, need=need or Need(Resources(100, 64, 10, 0)))
        return self.tell(Submitted(job_id("ann", key), Owner("ann"), spec, f"{key:0>64}"))

    def day(self, number: int) -> None:
        here = self.join(HERE)
        for n in range(JOINS):
            node = f"node_{number}_{n}"
            session = self.join(node)
            left = n % 2
            self.tell(NodeSaid(session, NodeId(node), Leaving(0, done=True)) if left else
                      NodeBroke(session, NodeId(node), "cut"))  # fmt: skip
        for n in range(TOKENS):
            expires = Instant(self.now + DAY_MS)
            self.tell(TokenMade(JoinToken(TokenId(f"tok_{number}_{n}"), "aa" * 32, Instant(self.now), expires, 1)))
        for n in range(JOBS):
            assert isinstance(self.submit(f"job {number} {n}"), Taken)
            self.tell(CancelAsked(job_id("ann", f"job {number} {n}")))
        self.seq += 1
        self.tell(NodeSaid(here, HERE, Report(1, True, ())))
        for n in range(STRANGERS):
            self.join(HERE, key=f"stranger {n}")
        self.commit()
        self.delete()
        self.now += DAY_MS
        for _ in range(3):
            self.tell(Tick())
        self.commit()

    def delete(self) -> None:
        after = START
        while after is not None:
            asked, after = look(self.store, lambda job: False, SETTINGS, self.now, after)
            if asked == DeletionAsked():
                return
            answer = self.tell(asked)
            assert isinstance(answer, Deletions)
            self.commit()
            if answer.entry_seq:
                self.store.forget_entries(answer.entry_seq, self.epoch)

    def memory(self) -> dict[str, int]:
        w = self.kernel._w
        return {
            "nodes": len(w.nodes), "fleet": len(w.fleet), "tokens": len(w.tokens), "jobs": len(w.jobs),
            "attempts": len(w.attempts), "deadlines": len(w.deadlines), "shapes": len(w.shapes), "kinds": len(w.kinds),
            "records": len(w.records), "claims": len(w.claims), "freed": len(w.freed),
        }  # fmt: skip


def deep_bytes(root: object) -> int:
    """The memory of everything that can be reached from an object, without types, functions and modules."""
    seen, todo, total = {id(root)}, [root], 0
    while todo:
        one = todo.pop()
        total += sys.getsizeof(one)
        fields = getattr(one, "__struct_fields__", ())
        found = [getattr(one, name) for name in fields] if fields else gc.get_referents(one)
        for other in found:
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                todo.append(other)
    return total


@pytest.mark.spec("A6", "J14", "H6", "N6")
def test_a_network_that_is_a_year_old_is_no_slower_larger_or_more_mistaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "ENDED_MAX", REMEMBERED)
    year = Year(tmp_path)
    large = year.join("node_large", gpus=1)
    year.tell(NodeBroke(large, NodeId("node_large"), "cut"))
    sizes: dict[int, Any] = {}
    costs: dict[int, int] = {}
    memory: dict[int, dict[str, int]] = {}
    taken: dict[int, int] = {}
    for number in range(DAYS):
        if number == 2:
            assert isinstance(year.submit("gpu of a machine that may return", GPU), Taken)
        year.day(number)
        if number in (40, 200, DAYS - 1):
            year.join(HERE)
            costs[number] = calls_of(lambda number=number: year.submit(f"measured {number}"))
            waits = year.submit(f"waits {number}", Need(replace(ROOM, cpu_milli=3_950)))
            assert isinstance(waits, Taken)
            said = year.tell(ExplainAsked(job_id("ann", f"waits {number}")))
            assert isinstance(said, Explanation) and said.gates.get("lost", 0) <= 31 * JOINS
            for name in ("measured", "waits"):
                year.tell(CancelAsked(job_id("ann", f"{name} {number}")))
            year.commit()
            sizes[number], memory[number] = year.store.sizes(), year.memory()
            taken[number] = deep_bytes(year.kernel)
    rows = sizes[DAYS - 1].rows

    # memory: what departed is forgotten within a month, and nothing else grows
    assert memory[DAYS - 1]["nodes"] <= 32 * JOINS + 2 and memory[DAYS - 1]["tokens"] <= 33 * TOKENS
    assert all(memory[DAYS - 1][name] <= 1.1 * memory[40][name] + 10 for name in memory[40]), memory
    assert taken[DAYS - 1] <= min(1.1 * taken[200], KERNEL_BYTES_MAX), taken

    # rows: a quarter of a year of jobs and journal; strangers add next to nothing
    assert rows["jobs"] <= 92 * JOBS + 20 and rows["deleted_jobs"] >= (DAYS - 93) * JOBS
    per_day = 8 * JOINS + 6 * JOBS + 20
    assert rows["entries"] <= 92 * per_day and rows["nodes"] <= 32 * JOINS + 2
    kept = sizes[DAYS - 1].bytes - DELETED_JOB_BYTES_MAX * rows["deleted_jobs"]
    assert kept <= STORE_BYTES_MAX, f"{kept} bytes"
    grown = {name for name, count in rows.items() if count > 1.1 * sizes[200].rows[name] + 10}
    assert grown <= {"deleted_jobs", "deleted_nodes", "deleted_tokens"}
    growth = (sizes[DAYS - 1].bytes - sizes[200].bytes) / ((DAYS - 1 - 200) * JOBS)
    assert growth <= DELETED_JOB_BYTES_MAX, f"{growth:.0f} bytes a job"

    # answers: nobody waits for a machine that is gone for a year, and an old key runs nothing
    refused = year.submit("gpu nobody has any more", GPU)
    assert isinstance(refused, Rejected) and refused.code == "no_fit"
    assert year.store.deleted_jobs([job_id("ann", "job 0 0")])

    # speed
    assert costs[DAYS - 1] <= 1.3 * costs[40] + 100, costs
    year.store.close()
