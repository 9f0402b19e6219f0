"""Codes of local errors: invalid calls, files of this machine, reaching an orchestrator."""

from holdfast.codes.rows import Row

ROWS = (
    # --- the call ---
    Row(
        "usage", 2, None, "the command or call is invalid",
        "a flag or command does not exist, a value is of the wrong type, or two flags contradict each other",
        "Compare with `holdfast COMMAND --help`; where something similar exists, the error names it.",
    ),
    Row(
        "config", 78, None, "a file, flag or variable has an invalid value",
        "a file that was named cannot be read or has the wrong content, or an address is invalid",
        "Correct what the message names: it says which file, flag or variable it was.",
    ),
    Row(
        "no_context", 78, None, "there is no context of that name",
        "--context, HOLDFAST_CONTEXT or `holdfast context use` names a network that was never added, or was removed",
        "`holdfast context list` shows those that are known; `holdfast context add` adds one.",
    ),
    Row(
        "bad_contexts", 78, None, "the file of known networks cannot be used",
        "contexts.json in HOLDFAST_HOME can be read by others, or is not valid JSON",
        "Correct it or its permissions (`chmod 600`); or remove it, and add the contexts again.",
    ),
    Row(
        "context_exists", 2, None, "there is a context of that name already",
        "it would be replaced, and its token with it",
        "Choose another name, or replace it with --force.",
    ),
    Row(
        "job_file_exists", 2, None, "there is a job file in this folder already",
        "`init` does not replace what somebody wrote",
        "Edit it, or replace it with `holdfast init --force`.",
    ),
    Row(
        "bad_job_file", 78, None, "the job file of this folder cannot be used",
        "it is not valid TOML, or has an unknown key or an invalid value",
        "Correct the line that the message names, or write a new one: `holdfast init --force`.",
    ),
    Row(
        "job_file_outside", 78, None, "the job file names something outside of its own folder",
        "a job file may come with somebody else's code, and must not send your other files or your home folder",
        "If you want it sent, take it out of the file and type it as a flag; if not, ask whose file it is.",
    ),
    Row(
        "plain_http", 78, None, "the admin token would be sent unencrypted",
        "the address begins with http:// and names another machine, and there is a token to send",
        "Use https:// and the orchestrator's certificate, or a tunnel to loopback: `ssh -L 7420:127.0.0.1:7420 HOST`.",
    ),
    Row(
        "no_endpoint", 78, None, "no orchestrator is configured, and none runs here",
        "there is no --url, no HOLDFAST_URL, no context, and no orchestrator of this user on this machine",
        "Start one with `holdfast up`, or say where it is with --url or HOLDFAST_URL.",
    ),
    Row(
        "file_unusable", 74, None, "a file or folder cannot be read or written",
        "it does not exist, belongs to another user, has another type, or its file system refuses it",
        "Look at it with `ls -ld`; the message has the system's error.",
    ),
    Row(
        "missing_part", 78, None, "a part of Holdfast is not installed",
        "it was installed without the optional libraries that this command needs",
        "Install them: the hint of the message names them.",
    ),
    Row(
        "internal", 70, 500, "an internal error of Holdfast",
        "a bug in Holdfast",
        "HOLDFAST_DEBUG=1 shows where; report it with that. For an orchestrator, its log has more.",
        inside="whatever causes it is a bug; tests/unit/test_cli_main.py shows how it is reported",
    ),
    Row(
        "unknown", 1, None, "a job failed without a stated reason",
        "the orchestrator named a verdict without a reason",
        "`holdfast job show ID` shows what is known about it.",
        inside="no orchestrator of this version does that",
    ),
    Row(
        "network_stuck", 70, None, "an event that a test waits for can no longer happen",
        "in the virtual network of `holdfast.testing`, no further events are due",
        "Read the sequence of events in the message.",
        inside="raised by the test kit, in a user's own tests",
    ),
    # --- reaching an orchestrator ---
    Row(
        "unreachable", 69, None, "there is no answer",
        "no orchestrator or node runs at that address or folder, or a firewall, a name or the network is in the way",
        "`holdfast doctor` says which of these it is.",
    ),
    Row(
        "untrusted", 76, None, "the server does not have the pinned certificate",
        "the orchestrator was set up anew, the address is wrong, or someone intercepts the connection",
        "If it was set up anew, copy its new certificate.pem over a channel you trust; if not, send nothing there.",
    ),
    Row(
        "garbled", 76, None, "the orchestrator's answer is invalid",
        "the versions of client and orchestrator are too far apart, or something else answers at that address",
        "Compare `holdfast version` here and there; run `holdfast doctor`.",
    ),
    Row(
        "server_fault", 76, 500, "the orchestrator failed on this request",
        "a fault of the orchestrator, or of something in front of it",
        "Its own log says more; `holdfast doctor` shows whether it is healthy.",
    ),
    Row(
        "refused", 65, None, "the request was understood and declined",
        "the server is not an orchestrator of this version, so its answer has no code",
        "Look at what answers there: `holdfast doctor`.",
    ),
    Row(
        "wait_expired", 75, None, "it did not happen within the time limit",
        "the job has not ended yet; it continues",
        "Wait longer, or see what it waits for: `holdfast job explain ID`. Nothing is lost.",
    ),
    # --- folders that are sent ---
    Row(
        "folder_is_home", 65, None, "the folder that would be sent is your home folder, or contains it",
        "`run` sends the current folder, a function the folder of its file; that is probably not intended",
        "Go to the folder of the job; or use --folder DIR, --no-folder, or a .holdfastignore file.",
    ),
    Row(
        "folder_too_large", 65, None, "the folder is too large to be sent without --folder",
        "`run` sends the current folder, a function the folder of its file; more than 10,000 files or 1 GiB are not "
        "sent by accident",
        "Name it with --folder DIR, send nothing with --no-folder, or leave things out with .holdfastignore.",
    ),
    Row(
        "folder_refused", 65, None, "a folder contains something that cannot be sent",
        "a name that is not valid text, an unreadable file, or invalid rules in .holdfastignore",
        "Rename or remove what the message names, or leave it out with a .holdfastignore file.",
    ),
    Row(
        "folder_changed", 75, None, "files were written to while they were read",
        "something else on this machine writes into the folder that is being sent",
        "Try again when nothing writes there, or leave these files out with a .holdfastignore file.",
    ),
    # --- results that are fetched ---
    Row(
        "not_ended", 75, 409, "the job has not ended",
        "its results are available when it has",
        "Wait for it: `holdfast logs -f ID`; or see what it waits for: `holdfast job explain ID`.",
    ),
    Row(
        "in_the_way", 73, None, "something else is in the place of content",
        "the folder for the results contains something else, or a link in the place of a file",
        "Move it away, or choose another folder: `holdfast results ID --to DIR`.",
    ),
    Row(
        "disk_full", 74, None, "this machine does not have enough space",
        "the disk, a quota or the limit of files is exhausted in the target folder",
        "Free some space there (`df -h`, `df -i`) and try again: what arrived is kept.",
    ),
    Row(
        "disk_refused", 74, None, "a folder cannot be written to",
        "it belongs to somebody else, or is on a read-only file system",
        "Choose another: `holdfast results ID --to DIR`. What has arrived is kept.",
    ),
    Row(
        "incomplete", 75, 409, "not everything arrived",
        "the results of some items of an array could not be fetched, or a node's checkpoint was not complete",
        "Try again: what arrived is not sent twice.",
    ),
    Row(
        "transfer_expired", 75, None, "a transfer exceeded its time limit",
        "the store or the connection was unavailable or slow for all that time",
        "Try again: what arrived is kept.",
    ),
    Row(
        "not_moved", 65, None, "a job could not be moved to the machine that was named",
        "that machine no longer had room, went away, or the job ended first",
        "`holdfast job show ID` says where it is; try another machine: `holdfast nodes`.",
    ),
    # --- neural networks ---
    Row(
        "topology", 78, None, "the description of a neural network is wrong",
        "the message says at which line and column, and what it found there",
        "Correct it there; `holdfast neural show FILE` checks it.",
    ),
    Row(
        "not_finite", 78, None, "a number left the range in which arithmetic is exact",
        "the learning rate is too high, or the data holds infinite numbers",
        "Lower the learning rate, clip the gradients, or look for such numbers in the data.",
    ),
    Row(
        "network_state", 78, None, "weights or a checkpoint do not fit the network",
        "they belong to another description, or were altered",
        "Use those that belong to this description, or train again.",
    ),
    Row(
        "training_data", 78, None, "the data does not fit this neural network",
        "its shape, type or amount is not what the description asks for, or the file cannot be read",
        "Compare the data with the inputs that the message names.",
    ),
    Row(
        "neural", 78, None, "the file of a neural network cannot be read",
        "it does not exist, or is not a file",
        "Check its spelling; `holdfast neural --help` has examples.",
    ),
)  # fmt: skip
