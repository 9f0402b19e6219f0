"""Decides who is to blame if the output of an attempt is not what its node declared. Pure.

The orchestrator hashes output twice: as it arrives, and as it is read back from the disk. A node answers only for the
first. If this process did not receive all of it, for example because it was restarted meanwhile, nobody can tell, and
nobody is blamed.
"""

import hashlib

import msgspec


class PrintedOutput(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


NOTHING = PrintedOutput(0, hashlib.sha256().hexdigest())
"""The output of a program that prints nothing."""


class OutputFault(msgspec.Struct, frozen=True):
    detail: str
    damaged: bool
    """The orchestrator's own copy differs from what arrived, or may do so."""


def output_fault(declared: PrintedOutput, stored: PrintedOutput, received: PrintedOutput | None) -> OutputFault | None:
    """`received`: what arrived; None: not known. Returns None if the stored output is the declared one."""
    if stored == declared:
        return None
    if received is not None and received != declared:
        if received.bytes != declared.bytes:
            detail = f"{declared.bytes} bytes of output were declared, {received.bytes} arrived"
        else:
            detail = "the output that arrived is not the output that was declared: their hashes differ"
        return OutputFault(detail, damaged=False)
    return OutputFault("the output was damaged on the orchestrator's disk after it had arrived", damaged=True)
