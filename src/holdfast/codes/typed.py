"""Codes of what goes wrong on this side: calls that make no sense, files of this machine, reaching an orchestrator."""

from holdfast.codes.rows import Row

ROWS = (
    # --- the call ---
    Row(
        "usage", 2, None, "the command or call makes no sense as it stands",
        "a flag or command does not exist, a value is of the wrong kind, or two flags contradict each other",
        "Compare with `holdfast COMMAND --help`; where something similar exists, the error names it.",
    ),
    Row(
        "config", 78, None, "a file, flag or variable holds something unusable",
        "a file that was named cannot be read or does not hold what it should, or an address is no address",
        "Correct what the message names: it says which file, flag or variable it was.",
    ),
    Row(
        "no_context", 78, None, "there is no context of that name",
        "--context, HOLDFAST_CONTEXT or `holdfast context use` names a network that was never added, or was removed",
        "`holdfast context list` shows those that are known; `holdfast context add` adds one.",
    ),
    Row(
        "bad_contexts", 78, None, "the file of known networks cannot be used",
        "contexts.json in HOLDFAST_HOME can be read by others, or was edited into something that is no JSON",
        "Correct it or its rights (`chmod 600`); or remove it, and add the contexts again.",
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
        "it is no TOML, has a key that does not exist, or a value that the key cannot have",
        "Correct the line that the message names, or write a new one: `holdfast init --force`.",
    ),
    Row(
        "job_file_outside", 78, None, "the job file names something outside of its own folder",
        "a job file may come with somebody else's code, and must not have your other files, or your home folder, sent",
        "If you want it sent, take it out of the file and type it as a flag; if not, ask whose file it is.",
    ),
    Row(
        "plain_http", 78, None, "the admin token would go over the network unencrypted",
        "the address begins with http:// and is another machine's, and there is a token to send",
        "Use https:// and the orchestrator's certificate, or a tunnel to loopback: `ssh -L 7420:127.0.0.1:7420 HOST`.",
    ),
    Row(
        "no_endpoint", 78, None, "nobody said where the orchestrator is, and none runs here",
        "there is no --url, no HOLDFAST_URL, no context, and no orchestrator of this user on this machine",
        "Start one with `holdfast up`, or say where it is with --url or HOLDFAST_URL.",
    ),
    Row(
        "file_unusable", 74, None, "a file or folder cannot be read or written",
        "it is not there, belongs to somebody else, is of another kind, or its file system does not take it",
        "Look at it with `ls -ld`; the message says what the system answered.",
    ),
    Row(
        "missing_part", 78, None, "a part of Holdfast is not installed",
        "it was installed without the optional libraries that this command needs",
        "Install them: `pip install 'holdfast[neural]'`.",
    ),
    Row(
        "internal", 70, 500, "a fault of Holdfast itself",
        "something happened that nobody foresaw",
        "HOLDFAST_DEBUG=1 shows where; report it with that. Of an orchestrator, its log says more.",
        inside="whatever causes it is a bug; tests/unit/test_cli_main.py shows how it is told",
    ),
    Row(
        "unknown", 1, None, "a job failed and nobody says why",
        "the orchestrator named a verdict without a reason",
        "`holdfast job show ID` tells what is known of it.",
        inside="no orchestrator of this version answers so",
    ),
    Row(
        "network_stuck", 70, None, "something that a test waits for can no longer happen",
        "in the virtual network of `holdfast.testing`, everything stands still",
        "Look at the story that the message tells.",
        inside="raised in tests of one's own, by the test kit",
    ),
    # --- reaching an orchestrator ---
    Row(
        "unreachable", 69, None, "nobody answers there",
        "no orchestrator or node runs at that address or folder, or a firewall, a name or the network is in the way",
        "`holdfast doctor` says which of these it is.",
    ),
    Row(
        "untrusted", 76, None, "someone answers, but not with the certificate that is pinned",
        "the orchestrator was set up anew, the address is another machine's, or someone stands in between",
        "If it was set up anew, take its new certificate.pem over a way you trust; if not, send nothing there.",
    ),
    Row(
        "garbled", 76, None, "the answer of the orchestrator makes no sense",
        "client and orchestrator are of versions too far apart, or something else answers at that address",
        "Compare `holdfast version` here and there; look with `holdfast doctor`.",
    ),
    Row(
        "server_fault", 76, 500, "the orchestrator failed on this request",
        "a fault of the orchestrator, or of something in front of it",
        "Its own log says more; `holdfast doctor` says whether it is well.",
    ),
    Row(
        "refused", 65, None, "the request was understood and declined",
        "something answers that is no orchestrator of this version, so it names no code of its own",
        "Look at what answers there: `holdfast doctor`.",
    ),
    Row(
        "wait_expired", 75, None, "it did not happen within the time that was given",
        "the job has not ended yet; it goes on",
        "Wait longer, or look what it waits for: `holdfast job explain ID`. Nothing is lost.",
    ),
    # --- folders that are sent ---
    Row(
        "folder_is_home", 65, None, "the folder that would be sent is your home folder, or has it inside",
        "`run` sends the folder it is started in, a function that of its file; surely not all of that is meant",
        "Go to the folder of the job; or use --folder DIR, --no-folder, or a .holdfastignore file.",
    ),
    Row(
        "folder_too_large", 65, None, "the folder is larger than what is sent without being named",
        "`run` sends the folder it is started in, a function that of its file; more than 10,000 files or 1 GiB are not "
        "sent by accident",
        "Name it with --folder DIR, send nothing with --no-folder, or leave things out with .holdfastignore.",
    ),
    Row(
        "folder_refused", 65, None, "a folder holds something that cannot be sent",
        "a name that is no text, a file that cannot be read, or rules in .holdfastignore that make no sense",
        "Rename or remove what the message names, or leave it out with a .holdfastignore file.",
    ),
    Row(
        "folder_changed", 75, None, "files were written to while they were read",
        "something else on this machine writes into the folder that is being sent",
        "Try again when it is quiet, or leave these files out with a .holdfastignore file.",
    ),
    # --- results that are fetched ---
    Row(
        "not_ended", 75, 409, "the job has not ended",
        "its results are there when it has",
        "Wait for it: `holdfast logs -f ID`; or see what it waits for: `holdfast job explain ID`.",
    ),
    Row(
        "in_the_way", 73, None, "something that is not ours lies where content belongs",
        "the folder for the results holds something else, or a link stands where a file belongs",
        "Move it away, or choose another folder: `holdfast results ID --to DIR`.",
    ),
    Row(
        "disk_full", 74, None, "this machine has no room",
        "the disk, a quota or the limit of files is used up where it is to be written",
        "Make room there (`df -h`, `df -i`), then do it again: what arrived is kept.",
    ),
    Row(
        "disk_refused", 74, None, "a folder cannot be written to",
        "it belongs to somebody else, or lies on a file system that takes nothing",
        "Choose another: `holdfast results ID --to DIR`. What has arrived is kept.",
    ),
    Row(
        "incomplete", 75, 409, "not everything arrived",
        "the results of some items of an array could not be fetched, or a node's checkpoint was not whole",
        "Do it again: what arrived is not sent twice.",
    ),
    Row(
        "transfer_expired", 75, None, "moving content took longer than was given",
        "the store or the line was away or slow for all that time",
        "Do it again: what arrived is kept.",
    ),
    Row(
        "not_moved", 65, None, "a job could not be moved to the machine that was named",
        "that machine had no room any more, went away, or the job ended first",
        "`holdfast job show ID` says where it is; try another machine: `holdfast nodes`.",
    ),
    # --- networks (neural) ---
    Row(
        "topology", 78, None, "the description of a neural network is wrong",
        "the message says at which line and column, and what stands there",
        "Correct it there; `holdfast network show FILE` checks it.",
    ),
    Row(
        "not_finite", 78, None, "a number left the range in which arithmetic is exact",
        "the learning rate is too high, or the data holds infinite numbers",
        "Lower the learning rate, clip the gradients, or look for such numbers in the data.",
    ),
    Row(
        "network_state", 78, None, "weights or a checkpoint do not fit the network",
        "they were made by another description, or were altered",
        "Take those that belong to this description, or train anew.",
    ),
    Row(
        "training_data", 78, None, "the data cannot feed this network",
        "its shape, kind or amount is not what the description asks for, or the file cannot be read",
        "Compare the data with the inputs that the message names.",
    ),
    Row(
        "neural", 78, None, "the file of a neural network cannot be read",
        "it is not there, or is no file",
        "Look at how it is spelled; `holdfast network --help` has examples.",
    ),
)  # fmt: skip
