"""Codes by which an orchestrator refuses a request."""

from holdfast.codes.rows import Row

ROWS = (
    Row(
        "bad_request", 65, 400, "the request is invalid",
        "a field is missing, of the wrong type, or out of range; the message names it",
        "Correct the field that the message names.",
    ),
    Row(
        "bad_cursor", 65, 400, "a stream cannot be resumed at that position",
        "the Last-Event-ID that was sent was not issued by this stream",
        "Start the stream again without Last-Event-ID.",
    ),
    Row(
        "cursor_expired", 65, 410, "a stream cannot be resumed at that position any more",
        "the journal is kept for as long as the network says (`journal_keep_ms`), and what follows that event is gone",
        "Start the stream again without Last-Event-ID, or from the oldest cursor, which the error names.",
    ),
    Row(
        "ambiguous", 65, 400, "the name or id matches several",
        "several jobs or nodes have ids that begin with these letters, or several have this name and only one can "
        "be stopped or moved",
        "Give the id, or more letters of it; the message lists those that match.",
    ),
    Row(
        "not_allowed", 77, 401, "the token is missing or not valid",
        "no token was sent, it belongs to another network, or it has expired or was revoked",
        "Give a token with --token-file FILE. The admin token is beside the orchestrator's endpoint.json; a network "
        "operator makes others: `holdfast access new`.",
    ),
    Row(
        "forbidden", 77, 403, "the token does not allow this",
        "it is for another role than the request needs, or it acts for another owner",
        "Use a token of the role that the message names; a network operator makes one: "
        "`holdfast access new --role ROLE`.",
    ),
    Row(
        "not_found", 66, 404, "there is no such job, node, array or file",
        "the name or id is mistyped, belongs to another owner, or what it names is no longer kept",
        "`holdfast jobs` and `holdfast nodes` list what there is.",
    ),
    Row(
        "no_such_node", 66, 404, "there is no such node",
        "it left while the request was processed",
        "`holdfast nodes` lists those that are there.",
        inside="an unknown node gives `not_found` first; this code needs a race",
    ),
    Row(
        "no_such_token", 66, 404, "there is no such join token",
        "its id is mistyped, or it belongs to another network",
        "Give the id that was shown when it was made, not the token itself.",
    ),
    Row(
        "no_such_access", 66, 404, "there is no such access token",
        "its id is mistyped, it belongs to another network, or it ended long ago",
        "Give the id that `holdfast access list` shows, not the token itself.",
    ),
    Row(
        "access_limit", 75, 429, "there are too many valid access tokens",
        "a network keeps 1,000 of them",
        "Revoke those that nobody uses: `holdfast access list`, `holdfast access revoke ID`.",
    ),
    Row(
        "token_limit", 75, 429, "a node operator has too many join tokens",
        "each that is listed counts (`tokens_per_operator_max`), also after it was used, revoked or has expired",
        "Use those that are left, or one for several machines: `holdfast token new --uses N`. Old ones are forgotten "
        "some time after they expire.",
    ),
    Row(
        "method_not_allowed", 65, 405, "that URL does not accept that method",
        "a program sends a request that the API does not have",
        "See the API's description at /schema on the orchestrator.",
    ),
    Row(
        "key_reused", 65, 409, "the idempotency key was used before, for something else",
        "a key identifies one job for ever, so that nothing runs twice by accident",
        "Use a new key, or send exactly what was sent before.",
    ),
    Row(
        "job_deleted", 66, 410, "the job ended long ago and was deleted",
        "ended jobs are kept for as long as the network says (`jobs_keep_ms`); their keys stay used, so that nothing "
        "runs twice by accident",
        "To run it again, submit it under a new key.",
    ),
    Row(
        "not_live", 65, 409, "the job has already ended",
        "the request only makes sense for a job that has not ended",
        "Run it again: `holdfast rerun ID`.",
    ),
    Row(
        "already_there", 65, 409, "the job is on that machine already",
        "it was placed or moved there before",
        "Nothing to do; `holdfast job show ID` shows where it is.",
    ),
    Row(
        "move_under_way", 65, 409, "the job is being moved already",
        "a job can have only one move at a time",
        "Wait until it has finished: `holdfast job explain ID` shows its state.",
    ),
    Row(
        "moved_too_often", 65, 409, "the job was moved the maximum number of times",
        "each move costs the work since its last checkpoint",
        "Let it end where it is, or stop it and run it again.",
    ),
    Row(
        "must_not_repeat", 65, 409, "the job must not run twice, and may have started",
        "it is of class `never`: moving it would start it a second time",
        "Let it end, or stop it and run it again: `holdfast stop`, `holdfast rerun`.",
    ),
    Row(
        "node_not_ready", 65, 409, "that machine accepts no work now",
        "it is draining, suspect, quarantined or on probation; the message says which",
        "Choose another machine, or try again later. `holdfast nodes` lists them.",
    ),
    Row(
        "no_room", 65, 409, "that machine has no room now",
        "other work holds what the job needs",
        "Choose another machine, or try again when something has ended there. `holdfast nodes` lists them.",
    ),
    Row(
        "too_late", 65, 409, "the program of the job has ended already",
        "its result is on its way",
        "Wait for it: `holdfast logs -f ID`.",
        inside="lasts for the moment between the end of the program and the arrival of its result",
    ),
    Row(
        "no_files", 65, 409, "the files of that job are not available",
        "it did not succeed, made none, or they are no longer kept",
        "Name a job that succeeded and left files in its folder; or send them again.",
    ),
    Row(
        "output_gone", 65, 410, "what the job printed is no longer kept",
        "output is kept for as long after a job's end as the network says (`logs_keep_ms`)",
        "Fetch results sooner: `holdfast results ID`; or run it again.",
    ),
    Row(
        "revoked", 65, 409, "that attempt no longer counts",
        "another attempt of the same job took its place",
        "Nothing: the node is told to end it.",
        inside="sent to nodes only; no person acts for an attempt",
    ),
    Row(
        "too_large", 65, 413, "what was sent is too large",
        "the body of a request is over 16 MiB, or an input larger than the job's disk",
        "Send less at a time; ask for more disk.",
    ),
    Row(
        "no_fit", 65, 422, "no machine of this network could ever hold the job",
        "it asks for more, or for other things, than any machine has; the message names the nearest",
        "Ask for less, or add a machine that is large enough.",
    ),
    Row(
        "owner_limit", 75, 429, "this owner has the maximum number of jobs",
        "that many of the owner's jobs have not ended",
        "Wait until some of them have ended, or stop some.",
    ),
    Row(
        "network_full", 75, 429, "the network has the maximum number of jobs",
        "that many have not ended",
        "Try again later.",
    ),
    Row(
        "bucket_not_allowed", 65, 400, "this network may not read from that bucket",
        "its operator did not allow it",
        "Ask its operator for `holdfast up --s3-inputs s3://BUCKET`, or give an https:// address.",
    ),
    Row(
        "bucket_refused", 65, 400, "the bucket does not let this network read the object",
        "the network's own keys have no permission for it",
        "Check the key of the object; if it is correct, the operator needs permission to read it.",
    ),
    Row(
        "busy", 75, 503, "the orchestrator cannot do it at this moment",
        "it is overloaded, starting, or deleting old content",
        "Try again in a moment; nothing was done.",
    ),
    Row(
        "store_unavailable", 75, 503, "the orchestrator cannot decide anything now",
        "its database is unavailable or full, or another orchestrator leads",
        "Try again in a moment; repeating is safe. `holdfast doctor` says more.",
    ),
    Row(
        "stopping", 75, 503, "the orchestrator is being stopped",
        "its operator ended it, or restarts it",
        "Try again in a moment; nothing was done.",
        inside="lasts for the milliseconds between the signal and the closed port",
    ),
    # --- content ---
    Row(
        "manifest_refused", 65, 422, "a manifest is invalid",
        "it has names that lead outside, overlap or are out of order, or it was altered",
        "Send folders with the client, which writes valid manifests.",
    ),
    Row(
        "blob_mismatch", 65, 422, "bytes do not have the hash or size that names them",
        "they were altered on the way, or belong to another file",
        "Send or fetch them again.",
    ),
    Row(
        "blob_damaged", 74, 422, "a stored file is damaged",
        "the disk or the store under the network changed it after it had been stored and verified",
        "Send it again from its folder, or run the job again; the operator looks at that disk (`holdfast doctor`).",
    ),
    Row(
        "blob_missing", 66, 404, "the store holds nothing under that name",
        "it was never sent, or is no longer kept",
        "Send it again.",
    ),
    Row(
        "over_quota", 75, 429, "its sender has sent as much as it may",
        "what was sent before has not been accepted yet, or much was accepted within a few hours",
        "Try again later; what is not used is cleared away.",
    ),
    Row(
        "link_refused", 77, 403, "a signed URL is wrong, altered or for something else",
        "it was forged, truncated, or signed for another method",
        "Ask for a new one.",
    ),
    Row(
        "link_expired", 75, 403, "a signed URL has expired",
        "it is valid for minutes only",
        "Ask for a new one.",
    ),
    Row(
        "store_full", 75, 507, "the blob store has no space left",
        "its disk or quota is used up",
        "Its operator must free some space; then try again.",
    ),
    Row(
        "store_slow", 75, 503, "the blob store did not answer in time",
        "it, its disk or the connection to it is overloaded",
        "Try again later.",
    ),
    Row(
        "store_gone", 75, 503, "the blob store cannot be reached",
        "it is down, or the connection to it is",
        "Try again later; `holdfast doctor` says more.",
    ),
    Row(
        "store_refused", 77, 503, "the blob store denies access to the orchestrator",
        "its keys, its bucket or its permissions are wrong",
        "The operator checks AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's permissions.",
    ),
    Row(
        "store_error", 75, None, "the blob store did not do what was asked",
        "the base of the codes above",
        "Try again later.",
        inside="only derived errors are ever raised",
    ),
    Row(
        "blob_exists", 75, None, "a create-only write found existing content",
        "the same content was stored at the same moment",
        "Nothing: it is the same content.",
        inside="the writer uses the existing content; it is not reported",
    ),
    Row(
        "blob_error", 1, None, "something is wrong with content",
        "the base of the codes about content",
        "See these.",
        inside="only derived errors are ever raised",
    ),
)  # fmt: skip
