"""What is wrong with this machine or with the way to its network, and what to do about it: `holdfast doctor`.

    findings    what a check says
    machine     this machine by itself, and whether it could host jobs
    reach       the way to the orchestrator, step by step, and what it says of itself and its nodes

Looks and says; repairs nothing. Every question has a time limit: a doctor who hangs finds nothing.
"""
