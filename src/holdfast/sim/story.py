"""Prints what happened in one simulated world, with virtual time, and its verdict."""

import sys

import msgspec

from holdfast.model import Entry
from holdfast.sim.plan import plan
from holdfast.sim.scene import Scene, WorldVerdict

_QUIET = {"job.preparing"}
"""Steps that only repeat the previous line."""


def tell(seed: int, story: bool = False, json: bool = False) -> int:
    """Replay the world of a seed. Returns 0 if every rule held, 1 if one was broken."""
    scene = Scene(plan(seed))
    verdict = scene.run()
    if json:
        sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
        return 0 if verdict.ok else 1
    if story:
        sys.stdout.writelines(line + "\n" for line in _cast(scene))
        sys.stdout.writelines(line + "\n" for line in _lines(scene))
    sys.stdout.writelines(line + "\n" for line in ending(verdict))
    return 0 if verdict.ok else 1


def _cast(scene: Scene) -> list[str]:
    machines = ", ".join(f"{m.id} ({m.offered.cpu_milli / 1000:g} cpu)" for m in scene.plan.machines)
    return [
        f"world {scene.plan.seed}: {len(scene.plan.machines)} machines: {machines}",
        f"{len(scene.plan.jobs)} jobs; {len(scene.plan.faults)} faults planned in {scene.plan.safety_ms / 1000:g} s",
        "",
    ]


def _lines(scene: Scene) -> list[str]:
    """Events of the world (left) and journal entries of the orchestrator (right, after a bar), in order."""
    told = [(at, order, f"{_clock(at)}  {text}") for order, (at, text) in enumerate(scene.world.notes)]
    told += [
        (at, len(told) + order, f"{_clock(at)}    | {_entry(entry)}")
        for order, (at, entry) in enumerate(scene.store.journal)
        if entry.kind not in _QUIET
    ]
    return [line for _, _, line in sorted(told, key=lambda item: item[:2])]


def _entry(entry: Entry) -> str:
    about = entry.attempt or entry.job or entry.node or ""
    return f"{entry.kind} {about}: {entry.text}"


def _clock(at: int) -> str:
    return f"{at // 1000:5d}.{at % 1000:03d}"


def ending(verdict: WorldVerdict) -> list[str]:
    faults = ", ".join(f"{count} {kind}" for kind, count in verdict.faults.items() if count)
    jobs = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.jobs.items()))
    lines = [
        "",
        f"{verdict.virtual_ms / 1000:.1f} virtual seconds, {verdict.events} events; jobs: {jobs or 'none'}",
        f"faults: {faults or 'none'}",
        f"trace {verdict.trace}",
    ]
    if verdict.ok:
        return [*lines, "every rule held"]
    return [*lines, f"BROKEN  {verdict.says}", f"replay: {verdict.replay}"]
