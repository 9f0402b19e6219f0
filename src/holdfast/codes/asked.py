"""Codes by which an orchestrator refuses what a person asks of it."""

from holdfast.codes.rows import Row

ROWS = (
    Row(
        "bad_request", 65, 400, "the request makes no sense as it stands",
        "a field is missing, of the wrong kind, or outside of what it may be; the message names it",
        "Correct the field that the message names.",
    ),
    Row(
        "bad_cursor", 65, 400, "a stream cannot be taken up at that place",
        "the Last-Event-ID that was sent is none that this stream gave out",
        "Begin the stream anew, without Last-Event-ID.",
    ),
    Row(
        "ambiguous", 65, 400, "what was typed fits several",
        "there are several jobs or nodes whose ids begin with these letters, or several of this name of which one is "
        "to be stopped or moved",
        "Give the id, or more letters of it; the message lists those that fit.",
    ),
    Row(
        "not_allowed", 77, 401, "the token is missing, wrong or not enough",
        "no token was sent, or it is another network's",
        "The admin token lies beside the orchestrator's endpoint.json; give it with --token-file.",
    ),
    Row(
        "not_found", 66, 404, "there is no such job, node, array or file",
        "the name or id is mistyped, belongs to another owner, or what it names is no longer kept",
        "`holdfast jobs` and `holdfast nodes` list what there is.",
    ),
    Row(
        "no_such_node", 66, 404, "there is no such node",
        "it left between two looks at it",
        "`holdfast nodes` lists those that are there.",
        inside="a node that is not known is `not_found` before anything is decided; this is what a race would give",
    ),
    Row(
        "no_such_token", 66, 404, "there is no such join token",
        "its id is mistyped, or it belongs to another network",
        "Give the id that was shown when it was made, not the token itself.",
    ),
    Row(
        "method_not_allowed", 65, 405, "that address does not take that method",
        "a program of one's own asks in a way that the API does not know",
        "See the API's description at /schema on the orchestrator.",
    ),
    Row(
        "key_reused", 65, 409, "the idempotency key was used before, for something else",
        "one key stands for one job for ever, so that nothing runs twice by accident",
        "Use a new key, or send exactly what was sent before.",
    ),
    Row(
        "not_live", 65, 409, "the job has already ended",
        "what was asked for can only be done to a job that has not",
        "Run it again: `holdfast rerun ID`.",
    ),
    Row(
        "already_there", 65, 409, "the job is on that machine already",
        "it was placed or moved there before",
        "Nothing is to do; `holdfast job show ID` says where it is.",
    ),
    Row(
        "move_under_way", 65, 409, "the job is being moved already",
        "one move at a time",
        "Wait until that is over: `holdfast job explain ID` says how it stands.",
    ),
    Row(
        "moved_too_often", 65, 409, "the job was moved as often as a job may be",
        "each move costs the work since its last checkpoint",
        "Let it end where it is, or stop it and run it again.",
    ),
    Row(
        "must_not_repeat", 65, 409, "the job must not run twice, and may have begun",
        "it is of class `never`: moving it would begin it a second time",
        "Let it end, or stop it and run it again: `holdfast stop`, `holdfast rerun`.",
    ),
    Row(
        "node_not_ready", 65, 409, "that machine takes no work now",
        "it is draining, suspect, quarantined or on probation; the message says which",
        "Choose another machine, or try again later: `holdfast nodes`.",
    ),
    Row(
        "no_room", 65, 409, "that machine has no room now",
        "other work holds what the job needs",
        "Choose another machine, or try again when something has ended there: `holdfast nodes`.",
    ),
    Row(
        "too_late", 65, 409, "the program of the job has ended already",
        "its result is on its way",
        "Wait for it: `holdfast logs -f ID`.",
        inside="lasts for the moment between the end of the program and the arrival of its result",
    ),
    Row(
        "no_files", 65, 409, "the files of that job cannot be had",
        "it did not succeed, made none, or they are no longer kept",
        "Name a job that succeeded and left files in its folder; or send them again.",
    ),
    Row(
        "output_gone", 65, 410, "what the job printed is no longer kept",
        "output is kept for as long after a job's end as the network says (`logs_keep_ms`)",
        "Fetch results sooner: `holdfast results ID`; or run it again.",
    ),
    Row(
        "revoked", 65, 409, "that attempt counts no more",
        "another attempt of the same job took its place",
        "Nothing: the node is told to end it.",
        inside="said to nodes, which obey; no person speaks for an attempt",
    ),
    Row(
        "too_large", 65, 413, "what was sent is larger than what is taken",
        "the body of a request is over 16 MiB, or an input larger than the job's disk",
        "Send less at a time; ask for more disk.",
    ),
    Row(
        "no_fit", 65, 422, "no machine of this network could ever hold the job",
        "it asks for more, or for other things, than any machine has; the message names the nearest",
        "Ask for less, or add a machine that is large enough.",
    ),
    Row(
        "owner_limit", 75, 429, "this owner has as many jobs as one may have",
        "that many of theirs have not ended",
        "Wait until some of them have ended, or stop some.",
    ),
    Row(
        "network_full", 75, 429, "the network holds as many jobs as it can",
        "that many have not ended",
        "Try again later.",
    ),
    Row(
        "bucket_not_allowed", 65, 400, "this network does not read from that bucket",
        "its operator did not allow it",
        "Ask its operator for `holdfast up --s3-inputs s3://BUCKET`, or give an https:// address.",
    ),
    Row(
        "bucket_refused", 65, 400, "the bucket does not let this network read the object",
        "the network's own keys have no right to it",
        "Check the key of the object; if it is right, the operator needs the right to read it.",
    ),
    Row(
        "busy", 75, 503, "the orchestrator cannot do it at this moment",
        "it is overloaded, starting, or just clearing up",
        "Try again in a moment; nothing was done.",
    ),
    Row(
        "store_unavailable", 75, 503, "the orchestrator cannot decide anything now",
        "its database is away or full, or another orchestrator leads",
        "Try again in a moment; repeating is safe. `holdfast doctor` says more.",
    ),
    Row(
        "stopping", 75, 503, "the orchestrator is being stopped",
        "its operator ended it, or restarts it",
        "Try again in a moment; nothing was done.",
        inside="lasts for the milliseconds between the signal and the closed door",
    ),
    # --- content ---
    Row(
        "manifest_refused", 65, 422, "a list of content breaks a rule",
        "names that lead outside, overlap or are out of order, or a list that was altered",
        "Send folders with the client, which writes such lists right.",
    ),
    Row(
        "blob_mismatch", 65, 422, "bytes do not have the hash or size that names them",
        "they were altered on the way, or are another file's",
        "Send or fetch them again.",
    ),
    Row(
        "blob_missing", 66, 404, "the store holds nothing under that name",
        "it was never sent, or is no longer kept",
        "Send it again.",
    ),
    Row(
        "link_refused", 77, 403, "a signed address is wrong, altered or for something else",
        "it was made up, cut off, or used for another method than it was signed for",
        "Ask for a new one.",
    ),
    Row(
        "link_expired", 75, 403, "a signed address is no longer good",
        "they are good for minutes",
        "Ask for a new one.",
    ),
    Row(
        "store_full", 75, 507, "the store of content has no room",
        "its disk or quota is used up",
        "Its operator makes room; then try again.",
    ),
    Row(
        "store_slow", 75, 503, "the store of content did not answer in time",
        "it, its disk or the line to it is overloaded",
        "Try again later.",
    ),
    Row(
        "store_gone", 75, 503, "the store of content cannot be reached",
        "it is down, or the line to it is",
        "Try again later; `holdfast doctor` says more.",
    ),
    Row(
        "store_refused", 77, 503, "the store of content does not let the orchestrator in",
        "its keys, its bucket or its permissions are wrong",
        "The operator checks AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's permissions.",
    ),
    Row(
        "store_error", 75, None, "the store of content did not do what was asked",
        "the common root of the codes above",
        "Try again later.",
        inside="only what is derived from it is ever raised",
    ),
    Row(
        "blob_exists", 75, None, "a write that may only create found something there",
        "somebody else stored the same at the same moment",
        "Nothing: it is the same content.",
        inside="the writer takes what is there instead; nobody is told",
    ),
    Row(
        "blob_error", 1, None, "something is wrong with content",
        "the common root of the codes about content",
        "See these.",
        inside="only what is derived from it is ever raised",
    ),
)  # fmt: skip
