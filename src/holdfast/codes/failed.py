"""What the owner of a job can do about each way in which jobs fail. What happened and the blame are in
`holdfast.model.failure`; this table must have exactly its codes.
"""

WHAT_TO_DO = {
    "exit_code": "Its output says more: `holdfast logs ID`. The exit code is the program's own.",
    "oom_job": "Ask for more memory: --memory. `holdfast job show ID` shows how far it came.",
    "oom_node": "Nothing: it is run again elsewhere. If it happens often, tell the operator of that machine.",
    "time_limit": "Give it more time: --time-limit; or let it save its state: --checkpoint.",
    "disk_quota": "Ask for more disk: --disk; or delete what is no longer needed while it runs.",
    "node_disk_full": "Nothing: it is run again elsewhere.",
    "image": "Look at the name, the tag and the registry; the detail is the engine's own answer.",
    "build": "The detail is the end of the build's output; build it on this machine first.",
    "data": "Look at the address, the hash and the size of the input that the detail names.",
    "damaged": "Run it again from its folder: `holdfast run` sends what is damaged anew. `holdfast doctor` says more.",
    "node_lost": "Nothing: it is run again elsewhere, from its last checkpoint where it has one (--checkpoint).",
    "network": "Nothing: it is tried again. If it happens often, check its connection with `holdfast doctor`.",
    "runtime_fault": "Nothing: it is run again elsewhere. The node's own log says more to its operator.",
    "invalid_result": "Nothing: it is run again elsewhere, and that machine is watched.",
    "offer_unanswered": "Nothing: it is offered to another machine.",
    "refused": "Nothing: it is offered to another machine.",
    "prepare_timeout": "If it happens everywhere, its inputs or its image are too large for the connections.",
    "upload_timeout": "If it happens everywhere, its results are too large to upload: leave less in its folder.",
    "orphaned": "Nothing: it is run again elsewhere.",
    "lease_lost": "It may have started, so it was not started again. Check what it did, then: `holdfast rerun ID`.",
    "node_unhealthy": "Nothing: it is run again elsewhere.",
    "drained": "Nothing: it is run again elsewhere.",
    "superseded": "Nothing: another attempt of the same job is the one that counts.",
    "cancelled": "Run it again if it was stopped by mistake: `holdfast rerun ID`.",
    "queue_expired": "Ask for less, wait longer (--queue-limit) or add a machine; `holdfast nodes` lists them.",
    "no_fit": "Ask for less, or add a machine that is large enough; `holdfast nodes` shows what there is.",
    "refuted": "Nothing: another machine finished the job. The machine that failed it gets a strike.",
    "poison": "Test it without harm: `holdfast rehearse -- CMD`; its output says more: `holdfast logs ID`.",
}
