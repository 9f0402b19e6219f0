"""Finds out what is wrong with this machine or its connection to the network, and what to do: `holdfast doctor`.

    findings    the result of a check
    machine     this machine by itself, and whether it could host jobs
    reach       the connection to the orchestrator, step by step, and the orchestrator's own checks and nodes

Reads only; repairs nothing. Every request has a time limit, so that the doctor never hangs.
"""
