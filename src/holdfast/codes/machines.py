"""Codes of what keeps an orchestrator or a node from starting, and a node from joining."""

from holdfast.codes.rows import Row

ROWS = (
    # --- an orchestrator ---
    Row(
        "already_running", 78, None, "another orchestrator already uses this data",
        "two orchestrators must never share a database",
        "Stop that one first, or start this one with another --data-dir.",
    ),
    Row(
        "port_taken", 78, None, "cannot listen on an address",
        "something else uses it, or it is not an address of this machine",
        "Choose another with the flag that the message names; `ss -ltnp` shows who has it.",
    ),
    Row(
        "bad_admin_token", 78, None, "the admin token file does not have a valid token",
        "it was truncated or edited; a short token would let anyone in",
        "Delete the file; a new token is made at the next start.",
    ),
    Row(
        "secret_exposed", 78, None, "a secret can be read by others on this machine",
        "the mode of its file allows it",
        "If nobody else has seen it, `chmod 600 FILE`; otherwise delete it and start again.",
    ),
    Row(
        "bad_certificate", 78, None, "a certificate cannot be used",
        "the file has something else, or certificate and key do not belong together",
        "Restore it from a copy. Deleting both files makes a new one, and all nodes need new tokens.",
    ),
    Row(
        "bad_host", 78, None, "a name cannot be used in a certificate",
        "it is not written in ASCII",
        "Give host names in ASCII (punycode) or addresses.",
    ),
    Row(
        "store_failed", 74, 503, "the database did not do what was asked",
        "it is unavailable, full, damaged, locked, or of a newer version",
        "The message says which; `holdfast doctor` checks the disk. Nothing is half written.",
    ),
    Row(
        "leadership_lost", 75, None, "another orchestrator leads",
        "it was started on the same database while this one was unavailable",
        "Nothing: this one ends; use the other.",
    ),
    # --- a node ---
    Row(
        "missing_setting", 78, None, "no orchestrator is configured for a node",
        "neither --orchestrator nor ORCHESTRATOR_ADDRESS nor a file sets it",
        "Copy the join command that `holdfast up` or `holdfast token new` prints.",
    ),
    Row(
        "bad_setting", 78, None, "a setting of a node has an invalid value",
        "the message names the flag, variable or file, and the valid values",
        "Correct it there: flags win over the environment, the environment over the file.",
    ),
    Row(
        "bad_file", 78, None, "the file with a node's settings cannot be used",
        "it does not exist, is not valid TOML, or has unknown settings",
        "Correct the line that the message names; docs/nodes.md lists all settings.",
    ),
    Row(
        "token_mistyped", 78, None, "the join token is mistyped",
        "letters are missing or changed; it carries a checksum",
        "Copy it again, whole, from where it was made; nothing was sent.",
    ),
    Row(
        "no_pin", 78, None, "nothing says how to recognise an orchestrator on another machine",
        "only a join token or an invitation carries the certificate's hash",
        "Give --token with the one that its operator hands out.",
    ),
    Row(
        "no_isolation", 78, None, "no sandbox works on this machine",
        "bubblewrap is not installed, or the kernel does not let it make namespaces",
        "`apt-get install bubblewrap`; `holdfast doctor` says what is missing. Last resort: --unsafe-process-runtime.",
    ),
    Row(
        "no_engine", 78, None, "the container engine that was named cannot be used",
        "its socket does not exist, is not permitted, or does not answer",
        "Start it (`systemctl start docker`), allow this user to use its socket, or leave --engine out.",
    ),
    Row(
        "home_unusable", 78, None, "the node's folder cannot be used",
        "it cannot be written, or its content does not belong to a node",
        "Give --home a folder that this user may write to.",
    ),
    Row(
        "home_busy", 78, None, "another node runs in this folder",
        "a folder can be used by one agent at a time",
        "Stop it, or give this one a folder of its own with --home.",
    ),
    Row(
        "bad_key", 78, None, "the node's key file does not have a key",
        "it was truncated or edited",
        "Restore it from a copy; or delete it and let the node join again under a new UUID.",
    ),
    Row(
        "bad_uuid", 78, None, "the node's identity is not a UUID",
        "PNODE_UUID holds something else",
        "Give 32 hex digits, with or without dashes, or leave it out: one is made.",
        inside="settings and the stored file are checked before, with `bad_setting` and `home_unusable`",
    ),
    Row(
        "port_unusable", 78, None, "the node's local status cannot be served",
        "something else uses that port",
        "Set PNODE_PORT to a free port, or to 0 for no local status.",
    ),
    # --- backing up ---
    Row(
        "backup_damaged", 1, None, "a backup was made of incomplete data",
        "files are missing, damaged or cannot be read in the original; the backup has all the others",
        "Take these files from an earlier backup; `holdfast backup --json` names them all. Check the disk.",
    ),
    # --- joining ---
    Row(
        "pin_mismatch", 76, None, "the orchestrator shows another certificate than the one the token pins",
        "the address is wrong, someone intercepts the connection, or the orchestrator was set up anew",
        "Ask its operator for a new token. No secret was sent.",
    ),
    Row(
        "not_tls", 76, None, "the server does not speak TLS like an orchestrator",
        "another program answers, or an orchestrator on loopback, which needs no pin",
        "Check address and port: nodes connect to the one that `holdfast up --listen` names.",
    ),
    Row(
        "token_needed", 3, None, "this network needs a join token",
        "it is not open to everyone",
        "Ask its operator for one: `holdfast token new`.",
    ),
    Row(
        "token_wrong", 3, None, "the join token does not belong to this network",
        "it belongs to another network, or this one was set up anew",
        "Ask its operator for a new one: `holdfast token new`.",
    ),
    Row(
        "token_revoked", 3, None, "the join token was revoked",
        "the operator revoked it",
        "Ask its operator for a new one: `holdfast token new`.",
    ),
    Row(
        "token_expired", 3, None, "the join token has expired",
        "its validity is over",
        "Ask its operator for a new one: `holdfast token new`.",
    ),
    Row(
        "token_used", 3, None, "the join token was used up",
        "the allowed number of machines have joined with it",
        "Ask its operator for a new one: `holdfast token new`.",
    ),
    Row(
        "join_limit", 3, None, "too many machines joined within a short time",
        "the network limits new machines per token, per address and in all (`joins_per_token_max`, "
        "`joins_per_address_max`, `joins_max`)",
        "Nothing: the node tries again by itself and is taken later. The operator can raise the limits.",
    ),
    Row(
        "uuid_taken", 3, None, "the node's identity belongs to another key",
        "a machine was copied, or its key was lost",
        "Give this machine an id of its own (PNODE_UUID), or restore its key.",
    ),
    Row(
        "uuid_in_use", 3, None, "a node of this identity is connected from another machine",
        "a machine was copied, or its old connection is not yet known to be dead",
        "Wait some seconds: the node tries again. If it persists, give one of them an id of its own.",
    ),
    Row(
        "version", 3, None, "the versions of node and orchestrator are too far apart",
        "one of them was upgraded further than the other understands",
        "Upgrade the one that the message names.",
    ),
    Row(
        "bad_signature", 3, None, "the node could not prove that it has its key",
        "its key file was replaced while it ran, or it is not a node of this software",
        "Start it again.",
        inside="a node of this software signs with the key that it shows",
    ),
    Row(
        "too_slow", 3, None, "a node sent nothing after it had connected",
        "its connection is very slow, or it is not a node",
        "Nothing: the node tries again.",
        inside="nodes reconnect by themselves; no person sees it",
    ),
)  # fmt: skip
