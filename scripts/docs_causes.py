"""The part of docs/states.md about causes: every code, with the sentence that is made of it."""

from collections.abc import Callable
from typing import Any

from docs_text import table
from msgspec.structs import replace

from holdfast.model import (
    Facts,
    FailureCode,
    Gate,
    NodeCause,
    PauseCause,
    RevokeCause,
    StraggleKind,
    TakeoverCause,
    WaitReason,
)
from holdfast.model.cause_text import (
    gate_text,
    node_cause_text,
    pause_text,
    revoke_failure,
    straggle_text,
    takeover_cause_text,
    wait_text,
)

EXAMPLE = Facts(
    label="bee", attempt="att_k3f.2", by="ann", detail="…", count=3, ms=12_000, limit_ms=9_000, median_ms=2_000,
    nodes=("bee", "ant"), fault=FailureCode.RUNTIME_FAULT, node_cause=NodeCause.SILENT, gate=Gate.MEMORY,
)  # fmt: skip


def _with(**changes: Any) -> Facts:
    return replace(EXAMPLE, **changes)


TAKEOVERS = {TakeoverCause.LOST: NodeCause.SILENT, TakeoverCause.QUARANTINED: NodeCause.FAULTS}
CODES: list[tuple[str, str, Any, Callable[[Any], str]]] = [
    (
        "What a job waits for",
        "`wait_reason` of a job and of its explanation",
        WaitReason,
        lambda c: wait_text(c, EXAMPLE),
    ),
    ("What keeps a job from a machine", "`gate_codes`", Gate, gate_text),
    (
        "How an attempt gets nowhere",
        "`straggle` of an attempt",
        StraggleKind,
        lambda c: straggle_text(_with(straggle=c)),
    ),
    (
        "Why an attempt was revoked",
        "`revoke_cause` of an attempt",
        RevokeCause,
        lambda c: revoke_failure(_with(revoke=c)).detail,
    ),
    (
        "What put a node into its state",
        "`cause_code` of a node",
        NodeCause,
        lambda c: node_cause_text(_with(node_cause=c)),
    ),
    (
        "Why a job is taken over",
        "`takeover` of an entry",
        TakeoverCause,
        lambda c: takeover_cause_text(_with(takeover=c, node_cause=TAKEOVERS[c])),
    ),
    (
        "Why a node's own side wants no new work for it",
        "`pause_cause` of a node",
        PauseCause,
        lambda c: pause_text(c, "…"),
    ),
]


def causes_section() -> list[str]:
    lines = [
        "## Causes",
        "",
        "A cause is a code with facts; the sentence is made of both, in one place "
        "(`holdfast.model.cause_text`). Rows of the API carry the code beside the sentence, and an entry of the "
        "journal its `facts`. Programs count and decide by codes; the sentences may change. A program should read a "
        "code that it does not have as `unknown`, as Holdfast does; `unknown` is also what an older release said in "
        "words that are on no list.",
        "",
    ]
    for title, where, codes, said in CODES:
        known = [code for code in codes if code.value != "unknown"]
        lines += [f"### {title}", "", f"{where[:1].upper()}{where[1:]}.", ""]
        lines += [table(["code", "sentence"], [[f"`{code.value}`", said(code)] for code in known])]
    return lines
