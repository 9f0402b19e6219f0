"""Which of the sites that open, read, list or stat nothing visits in a network or a story, and why; and which of the
others are tried in `make test`."""

from fault_sites import AWHILE, ONCE, OPEN, PASSING_WAYS, READ, TEST, UNREAD

PASSING_WAYS_OF = {OPEN: PASSING_WAYS, READ: (ONCE, AWHILE), TEST: (ONCE,)}
"""`test` has no errors that last: what needs no descriptor fails for lack of memory only, and says False."""

_ENGINE = "needs a container engine; tests/integration/test_container_faults.py kills engine and supervisor"
_PERSON = "for a command that a person typed, or a program of the owner: it says what failed, and keeps nothing"
_DOCTOR = "a look at the machine for a person; says what it could not see"
_JOB = "runs in the process of a job, which fails or goes on as its own program does"
_UNIT = "tests/unit/test_passing.py lets it fail"
_KIN = "the same call, with the same patience, as a site that is visited"
_LATER = "garbage, retention and scrubs: a round that fails is done again"
_CACHE = "what cannot be read counts as absent, and is fetched or made again"
_BROKEN = "words for a failure that has happened already"
_OTHER = "an option that these machines do not have: no sandbox, a network for jobs, control groups of version 2"

ROOMS = {
    "callee.py:": _JOB,
    "cli/": _PERSON,
    "diagnostics/": _DOCTOR,
    "node/images/": _ENGINE,
    "node/runtimes/container": _ENGINE,
    "node/runtimes/engine_": _ENGINE,
    "node/runtimes/gpus.py:": "needs a GPU; without its devices a job does not start",
    "orchestrator/failpoints.py:": "reads the source, for tests",
    "orchestrator/leader/record.py:_lines:": "reads a recording, for tests",
    "node/attempt/venvs.py:_rename_in_scripts:": _OTHER,
    "node/runtimes/process.py:": _OTHER,
    "client/endpoint.py:": _PERSON,
    "client/folder_keys.py:": _PERSON,
    "client/selection.py:": _PERSON,
    "client/functions.py:": _PERSON,
    "client/function_source.py:": _PERSON,
}
SITES = {
    "blobs/beneath.py:Beneath.__init__:read": _UNIT,
    "blobs/cache.py:BlobCache.find:read": _CACHE,
    "blobs/folder.py:FolderStore._probe:read:3": _LATER,
    "blobs/folder.py:FolderStore._get:read": "says only whether absent content was damaged",
    **dict.fromkeys(
        [f"blobs/folder.py:FolderStore._scrub:{one}" for one in ("open", "read", "read:2", "read:3")], _LATER
    ),
    "blobs/folder.py:FolderStore._deletion_lock:read": _LATER,
    "blobs/folder.py:_size:read": _KIN,
    **dict.fromkeys([f"blobs/unpacking.py:Unpacking._whole:{one}" for one in ("read", "read:2")], _KIN),
    "blobs/unpacking.py:Unpacking._resumed:read": _KIN,
    "blobs/unpacking.py:Unpacking._new_part:read:2": _KIN,
    **dict.fromkeys([f"blobs/unpacking.py:Unpacking._open_part:{one}" for one in ("read", "read:2")], _KIN),
    "client/array_results.py:ArrayResults._bring:read": _PERSON,
    "client/array_results.py:ArrayResults._make_way:read": _PERSON,
    "client/array_results.py:index_of:read:2": _PERSON,
    "client/array_results.py:place_for:read": _PERSON,
    **dict.fromkeys([f"client/folders.py:there:{one}" for one in ("read:2", "read:3")], _PERSON),
    "client/results.py:_free_or_of:read": _PERSON,
    **dict.fromkeys([f"client/results.py:belongs_to:{one}" for one in ("read", "read:2", "read:3")], _PERSON),
    "node/agent.py:Agent._put_away:read": "the folder of a job that is removed; removal is tried again",
    "node/attempt/attempt_folders.py:_read_attempt_inputs:read": _KIN,
    "node/attempt/attempt_folders.py:scan:read:2": "the agent does not start, and is started again",
    "node/attempt/attempt_folders.py:_bring_back:read": _BROKEN,
    "node/attempt/attempt_folders.py:is_claimed:read": "asked for again",
    "node/attempt/attempt_folders.py:log_sizes:read": _UNIT,
    "node/attempt/attempt_folders.py:last_words:read": _BROKEN,
    "node/attempt/attempt_folders.py:_is_marked:read:2": _KIN,
    "node/attempt/result_uploader.py:_text:open": _KIN,
    **{f"node/attempt/preparation.py:Preparer._bring:{one}": _KIN for one in ("read", "read:2", "read:3")},
    "node/attempt/preparation.py:_text_in:open": _KIN,
    "node/attempt/venvs.py:Venvs.held_mib:read:2": "the agent does not start, and is started again",
    "node/attempt/venvs.py:Venvs._in_use:read": _KIN,
    "node/attempt/venvs.py:_freeze:read": _KIN,
    "node/config.py:_read_file:read": _PERSON,
    "node/home.py:NodeHome.__init__:read:2": _BROKEN,
    "node/launcher.py:Launcher.spawn_now:open": "the launcher died after it had started the shim; the shim is followed",
    **dict.fromkeys([f"node/linux.py:is_in:{one}" for one in ("read", "read:2")], _KIN),
    "node/runtimes/cgroups.py:_settle:test": _OTHER,
    "node/runtimes/cgroups.py:KernelLog.blamed:read": "without the log, counters decide",
    "node/runtimes/netns.py:SandboxNetwork._start_router:read:3": _BROKEN,
    "node/runtimes/netns.py:SandboxNetwork._batch:read": _BROKEN,
    "node/runtimes/scratch.py:_is_clean:open": "after a power cut; tests/unit/test_passing.py: nothing is concluded",
    **dict.fromkeys([f"orchestrator/backup.py:unfinished:{one}" for one in ("read", "read:2")], _PERSON),
    **dict.fromkeys([f"orchestrator/backup.py:_empty:{one}" for one in ("read:2", "read:3")], _PERSON),
    **dict.fromkeys(
        [f"orchestrator/logs/log_files.py:LogStore.{one}:read" for one in ("delete", "jobs", "has", "marked")], _LATER
    ),
    "orchestrator/logs/log_files.py:LogStore.size:read": "asked for again; tests/unit/test_log_store.py",
    "state/engines.py:make_shrinkable:read:2": "a store of an earlier release, at its first start",
    "state/reserve.py:StoreReserve.hold:read:3": _LATER,
}
BY_CHANCE = {
    "node/attempt/disk_room.py:_allocated:read": "only where another attempt is there when one is prepared",
    "node/attempt/disk_room.py:taken_bytes:read": "only where another attempt is there when one is prepared",
    "node/linux.py:BootTimer.clear:read": "only where a deadline is reached before anything else happens",
    "node/runtimes/scratch.py:used_mib:read": "only where a job runs for a second",
}
SAMPLE = {
    "blobs/unpacking.py:Unpacking._new_part:read": AWHILE,
    "blobs/folder.py:FolderStore._promote:open": UNREAD,
    "node/launcher.py:_spawn:read": AWHILE,
    "node/linux.py:_text:open": UNREAD,
    "node/log_sender.py:Courier._next_piece:open": UNREAD,
    "node/runtimes/system_view.py:options:test": ONCE,
    "node/runtimes/cgroups.py:_read:open": AWHILE,
    "node/runtimes/owners.py:_read:open": UNREAD,
    "node/runtimes/scratch.py:_read_mounts:open": UNREAD,
    "orchestrator/logs/log_files.py:LogStore._opened:read:2": ONCE,
    "state/reserve.py:_space:read": ONCE,
}


def unvisited(site: str) -> str:
    """Why nothing visits this site; empty if something should."""
    return SITES.get(site) or next((why for start, why in ROOMS.items() if site.startswith(start)), "")
