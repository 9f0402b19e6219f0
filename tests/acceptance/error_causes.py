"""A real way to cause each error that a person can cause: a command, a file, a request. See test_cli_errors.py."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from error_world import Said, World, certificate, of_answer, of_error, of_text, tls_door

import holdfast
from holdfast.errors import HoldfastError
from holdfast.identity import tokens
from holdfast.testing.processes import wait_for

SMALL_FLAGS = ("--memory", "64MiB", "--disk", "16MiB", "--cpu", "100m")

Cause = Callable[[World], Said]
CAUSES: dict[str, Cause] = {}


def causes(code: str) -> Callable[[Cause], Cause]:
    def keep(cause: Cause) -> Cause:
        CAUSES[code] = cause
        return cause

    return keep


# --- the call ---

CAUSES["usage"] = lambda w: w.typed("run", "--memroy", "1GiB", "--", "true")
CAUSES["config"] = lambda w: w.typed("jobs", "--token-file", "nowhere")
CAUSES["no_context"] = lambda w: w.typed("jobs", env={"HOLDFAST_CONTEXT": "nowhere"})
CAUSES["no_endpoint"] = lambda w: w.typed("jobs", env={"HOLDFAST_HOME": str(w.fresh())})


@causes("unreachable")
def _(w: World) -> Said:
    with socket.socket() as taken:  # and so nobody else's, but nobody listens
        taken.bind(("127.0.0.1", 0))
        return w.typed("jobs", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}")


@causes("bad_contexts")
def _(w: World) -> Said:
    home = w.fresh()
    (home / "contexts.json").write_text("{")
    (home / "contexts.json").chmod(0o600)
    return w.typed("jobs", env={"HOLDFAST_HOME": str(home)})


CAUSES["file_unusable"] = lambda w: w.typed("init", "--", "true", cwd=Path("/proc"))


@causes("job_file_exists")
def _(w: World) -> Said:
    desk = w.fresh()
    w.typed("init", "--", "true", cwd=desk)
    return w.typed("init", "--", "true", cwd=desk)


@causes("bad_job_file")
def _(w: World) -> Said:
    (desk := w.fresh()).joinpath("holdfast.toml").write_text("comand = ['true']")
    return w.typed("run", cwd=desk)


@causes("job_file_outside")
def _(w: World) -> Said:
    (desk := w.fresh()).joinpath("holdfast.toml").write_text("command = ['true']\nfolder = '..'")
    return w.typed("run", cwd=desk)


@causes("plain_http")
def _(w: World) -> Said:
    (token := w.fresh() / "token").write_text("a token of a network far away")
    env = {"HOLDFAST_HOME": str(w.fresh())}
    return w.typed("context", "add", "lab", "--url", "http://lab.example", "--token-file", str(token), env=env)


@causes("context_exists")
def _(w: World) -> Said:
    env = {"HOLDFAST_HOME": str(w.fresh())}
    w.typed("context", "add", "lab", "--url", w.url, env=env)
    return w.typed("context", "add", "lab", "--url", w.url, env=env)


@causes("missing_part")
def _(w: World) -> Said:
    # given a Python that has no NumPy
    (folder := w.fresh()).joinpath("numpy.py").write_text("raise ModuleNotFoundError('no numpy', name='numpy')")
    tree = Path(holdfast.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "neural", "show", "any.yaml"],
        env=w.network.environment({"PYTHONPATH": f"{folder}{os.pathsep}{tree}"}),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return of_text(done.returncode, done.stdout + done.stderr)


@causes("untrusted")
def _(w: World) -> Said:
    ours = certificate(w.fresh()) / "certificate.pem"
    with tls_door(w.fresh()) as port:
        return w.typed("jobs", "--url", f"https://127.0.0.1:{port}", env={"HOLDFAST_CERTIFICATE": str(ours)})


CAUSES["garbled"] = lambda w: w.typed("jobs", "--url", w.liar.answers(200, b"hello"))
CAUSES["server_fault"] = lambda w: w.typed("jobs", "--url", w.liar.answers(500, b"oh"))
CAUSES["refused"] = lambda w: w.typed("jobs", "--url", w.liar.answers(418, b"a teapot"))
CAUSES["busy"] = lambda w: w.typed("jobs", "--url", w.liar.answers(503, b"later"))
CAUSES["store_unavailable"] = lambda w: w.typed(
    "jobs", "--url", w.liar.answers(503, b'{"code":"store_unavailable","says":"the store is away"}')
)


@causes("wait_expired")
def _(w: World) -> Said:
    job, _ = w.running("sleep", "600")
    try:
        w.network.client().jobs.wait(job, timeout_s=0.1)
        raise AssertionError("it ended")
    except HoldfastError as expired:
        return of_error(expired)
    finally:
        w.stop(job)


# --- folders and results ---

CAUSES["folder_is_home"] = lambda w: w.typed("run", "--", "true", cwd=Path("/"), env={"HOME": "/root"})


@causes("folder_too_large")
def _(w: World) -> Said:
    with (desk := w.fresh()).joinpath("large").open("wb") as file:
        file.truncate(2 << 30)
    return w.typed("run", "--", "true", cwd=desk)


@causes("folder_refused")
def _(w: World) -> Said:
    desk = w.fresh()
    (desk / "x").write_text("")
    Path(os.fsdecode(os.fsencode(desk) + b"/\xff")).touch()
    return w.typed("run", "--", "true", cwd=desk)


@causes("not_ended")
def _(w: World) -> Said:
    job, _ = w.running("sleep", "600")
    try:
        return w.typed("results", job)
    finally:
        w.stop(job)


@causes("in_the_way")
def _(w: World) -> Said:
    (other := w.fresh()).joinpath("mine").write_text("mine")
    return w.typed("results", w.maker, "--to", str(other))


@causes("disk_full")
def _(w: World) -> Said:
    small = w.fresh()
    job = w.maker
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=True)
    try:
        return w.typed("results", job, "--to", str(small / "results"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


CAUSES["disk_refused"] = lambda w: w.typed("results", w.maker, "--to", "/proc/results")


@causes("backup_damaged")
def _(w: World) -> Said:
    # given a copy of a network's data that has lost its files
    (folder := w.fresh()).joinpath("given").write_text("given")
    w.typed("run", "--detach", *SMALL_FLAGS, "--folder", str(folder), "--", "true")
    w.typed("backup", str(copy := w.fresh() / "copy"))
    (copy / "blobs" / "owned").rename(copy / "blobs" / "lost")
    return w.typed("backup", str(w.fresh() / "again"), "--data-dir", str(copy))


# --- neural networks ---


CAUSES["neural"] = lambda w: w.typed("neural", "show", "nowhere.yaml")


@causes("topology")
def _(w: World) -> Said:
    (file := w.fresh() / "wrong.yaml").write_text("operators: 3\n")
    return w.typed("neural", "show", str(file))


# --- what an orchestrator refuses ---

CAUSES["bad_request"] = lambda w: w.typed("run", "--class", "sometimes", "--", "true")
CAUSES["bad_cursor"] = lambda w: of_answer(w.http.get("/v1/events", headers={"Last-Event-ID": "none"}))
CAUSES["not_allowed"] = lambda w: w.typed("jobs", env={"HOLDFAST_ADMIN_TOKEN": "wrong"})
CAUSES["not_found"] = lambda w: w.typed("logs", "nothing-of-this-name")
CAUSES["forbidden"] = lambda w: w.typed(
    "token", "list", env={"HOLDFAST_ACCESS_TOKEN": w.network.client().access.create("user", owner="zoe").token}
)
CAUSES["no_such_access"] = lambda w: w.typed("access", "revoke", "acc_nothing")
CAUSES["no_such_token"] = lambda w: w.typed("token", "revoke", "tok_nothing")
CAUSES["method_not_allowed"] = lambda w: of_answer(w.http.delete("/v1/jobs"))
CAUSES["too_large"] = lambda w: of_answer(w.http.post("/v1/jobs", content=b" " * (17 << 20)))
CAUSES["no_fit"] = lambda w: w.typed("run", "--gpu", "64", "--", "true")
CAUSES["bucket_not_allowed"] = lambda w: w.typed("run", "--input", "a=s3://bucket/key", "--", "true")


@causes("ambiguous")
def _(w: World) -> Said:
    # given so many jobs that two ids begin with the same letter
    firsts: set[str] = set()
    while (job := w.job("true"))[4] not in firsts:
        firsts.add(job[4])
    return w.typed("job", "show", job[:5])


@causes("key_reused")
def _(w: World) -> Said:
    w.typed("run", *SMALL_FLAGS, "--detach", "--key", "once", "--", "true")
    return w.typed("run", *SMALL_FLAGS, "--detach", "--key", "once", "--", "false")


CAUSES["not_live"] = lambda w: w.typed("move", w.ended("true"), "--to", "ant")


def _moved(w: World, to: Callable[[str], str], **fields: Any) -> Said:
    job, node = w.running("sleep", "600", **fields)
    try:
        return w.typed("move", job, "--to", to(node))
    finally:
        w.stop(job)


def _other(node: str) -> str:
    return "bee" if node == "ant" else "ant"


CAUSES["already_there"] = lambda w: _moved(w, lambda node: node)
CAUSES["must_not_repeat"] = lambda w: _moved(w, _other, recovery="never")


@causes("node_not_ready")
def _(w: World) -> Said:
    nodes = w.network.client().nodes

    def drained(node: str) -> str:
        nodes.drain(_other(node))
        return _other(node)

    try:
        return _moved(w, drained)
    finally:
        for node in ("ant", "bee"):
            nodes.drain(node, on=False)


@causes("no_room")
def _(w: World) -> Said:
    # given a machine of which all cores are taken
    nodes = w.network.client().nodes
    wait_for(lambda: not any(node.attempts for node in nodes.list()), "what others left behind to be over", 100)
    filler, there = w.running("sleep", "600", cpu_milli=nodes.get("bee").total["cpu_milli"])
    job, _ = w.running("sleep", "600", cpu_milli=1_000)
    try:
        return w.typed("move", job, "--to", there)
    finally:
        w.stop(filler)
        w.stop(job)


CAUSES["no_files"] = lambda w: w.typed("run", "--input", f"a=job:{w.ended('true')}", "--", "true")


# --- content ---


def _sent(w: World, content: bytes, claimed: bytes | None = None) -> httpx.Response:
    """Bytes as a blob, under the hash of `claimed`."""
    from hashlib import sha256

    name = sha256(claimed or content).hexdigest()
    urls = w.http.post("/v1/blobs/links", json={"blobs": [[name, len(content)]]}).json()["urls"]
    return w.http.put(urls[name], content=content)


@causes("blob_mismatch")
def _(w: World) -> Said:
    return of_answer(_sent(w, b"these bytes", b"other bytes"))


@causes("manifest_refused")
def _(w: World) -> Said:
    from hashlib import sha256

    assert _sent(w, b"no manifest").status_code < 300
    return of_answer(w.http.post("/v1/manifests", json={"manifest": sha256(b"no manifest").hexdigest()}))


CAUSES["link_refused"] = lambda w: of_answer(w.http.get("/blobs/owned/x?e=1&s=2"))


# --- starting an orchestrator ---

CAUSES["already_running"] = lambda w: w.up(w.network.home / "orchestrator")
CAUSES["port_taken"] = lambda w: w.up(w.fresh(), "--http", w.url.removeprefix("http://"))


@causes("bad_admin_token")
def _(w: World) -> Said:
    (file := (data := w.fresh()) / "admin.token").write_text("short")
    file.chmod(0o600)
    return w.up(data)


@causes("secret_exposed")
def _(w: World) -> Said:
    (file := (data := w.fresh()) / "admin.token").write_text("x" * 40)
    file.chmod(0o644)
    return w.up(data)


@causes("bad_certificate")
def _(w: World) -> Said:
    (file := (data := w.fresh()) / "certificate.key").write_text("no key")
    file.chmod(0o600)
    return w.up(data, "--http", "0.0.0.0:0")


CAUSES["bad_host"] = lambda w: w.up(w.fresh(), "--http", "höst.example:0")


@causes("store_failed")
def _(w: World) -> Said:
    (data := w.fresh()).joinpath("state.db").write_bytes(b"this is no database" * 100)
    return w.up(data)


# --- starting a node ---

CAUSES["missing_setting"] = lambda w: w.typed("node")
CAUSES["bad_setting"] = lambda w: w.typed("node", "--orchestrator", "nowhere")
CAUSES["bad_file"] = lambda w: w.typed("node", "--config", "nowhere.toml")
CAUSES["token_mistyped"] = lambda w: w.node("--token", "hfj1_nonsense")
CAUSES["no_pin"] = lambda w: w.node("--orchestrator", "192.0.2.1:7421")
CAUSES["no_isolation"] = lambda w: w.node("--engine", "none")
CAUSES["no_engine"] = lambda w: w.node("--engine", str(w.fresh() / "no.sock"), "--unsafe-process-runtime")
CAUSES["home_unusable"] = lambda w: w.node("--home", "/proc/node")
CAUSES["home_busy"] = lambda w: w.node("--home", str(w.network.nodes["ant"].home))


@causes("bad_key")
def _(w: World) -> Said:
    (file := (home := w.fresh()) / "key").write_text("no key")
    file.chmod(0o600)
    return w.node("--home", str(home))


@causes("port_unusable")
def _(w: World) -> Said:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return w.node("--port", str(taken.getsockname()[1]), "--token", _token(w))


# --- joining ---


def _token(w: World, **wishes: Any) -> str:
    return w.network.client().tokens.create(**wishes).token


@causes("pin_mismatch")
def _(w: World) -> Said:
    with tls_door(w.fresh()) as port:
        return w.node("--orchestrator", f"127.0.0.1:{port}", "--token", tokens.invitation("0" * 64).text)


CAUSES["not_tls"] = lambda w: w.node("--token", tokens.invitation("0" * 64).text)
CAUSES["token_needed"] = lambda w: w.node()


@causes("token_wrong")
def _(w: World) -> Said:
    good = tokens.parse(_token(w))
    return w.node("--token", tokens.Ticket(good.id, bytes(len(good.secret)), good.pin).text)


@causes("token_revoked")
def _(w: World) -> Said:
    made = w.network.client().tokens.create()
    w.network.client().tokens.revoke(made.id)
    return w.node("--token", made.token)


@causes("token_expired")
def _(w: World) -> Said:
    made = w.network.client().tokens.create(ttl_ms=1_000)
    wait_for(lambda: made.expires_ms < _now_ms(), "its time to be over")
    return w.node("--token", made.token)


def _now_ms() -> int:
    import time

    return round(time.time() * 1000)


CAUSES["token_used"] = lambda w: w.node("--token", w.used)


@causes("uuid_taken")
def _(w: World) -> Said:
    return w.node("--uuid", w.network.nodes["ant"].id.removeprefix("node_"), "--token", _token(w))


# --- an orchestrator with other settings ---


CAUSES["owner_limit"] = lambda w: of_answer([w.crowded.send(owner) for owner in "aa"][-1])
CAUSES["network_full"] = lambda w: of_answer([w.crowded.send(owner) for owner in "abc"][-1])


@causes("bucket_refused")
def _(w: World) -> Said:
    w.liar.answers(403, b"")
    return of_answer(w.crowded.send("d", inputs=[{"name": "a", "url": "s3://shut/key"}]))


ELSEWHERE = {
    "access_limit": "kernel/test_access_tokens.py::test_rows_are_bounded_and_no_valid_token_is_evicted",
    "token_limit": "kernel/test_access_tokens.py::test_a_node_operator_has_only_so_many_join_tokens",
    "job_deleted": "acceptance/test_cli_retention.py::test_what_is_old_goes_and_its_key_runs_nothing_again",
    "cursor_expired": "acceptance/test_cli_retention.py::test_what_is_old_goes_and_its_key_runs_nothing_again",
    "join_limit": "kernel/test_forgetting.py::test_new_machines_are_limited_by_token_address_and_in_all",
    "folder_changed": "unit/test_blobs_scanning.py::test_a_file_that_never_rests_refuses_the_folder_or_is_left_out",
    "incomplete": "acceptance/test_cli_arrays.py::test_results_of_an_array_come_later_and_go_on_where_they_were_cut",
    "transfer_expired": "integration/test_blobs_transfer.py"
    "::test_a_transfer_that_ends_for_no_fault_of_the_store_is_called_expired",
    "not_moved": "faults/test_moves.py::test_a_target_that_dies_midway_leaves_the_job_where_it_is",
    "not_finite": "neural/test_training.py::test_a_rate_that_explodes_is_refused_with_a_name",
    "network_state": "neural/test_training.py::test_a_checkpoint_that_was_altered_or_does_not_fit_is_refused",
    "training_data": "neural/test_training.py::test_data_that_cannot_feed_the_network_is_refused",
    "moved_too_often": "kernel/test_moving.py::test_a_job_is_not_moved_for_ever",
    "uuid_in_use": "integration/test_orchestrator_nodes.py::test_an_identity_belongs_to_its_first_key",
    "move_under_way": "kernel/test_moving.py::test_a_job_that_is_being_moved_is_not_sent_elsewhere",
    "output_gone": "integration/test_log_retention.py::test_a_reader_who_comes_too_late_is_told_so",
    "blob_damaged": "integration/test_bit_rot.py::test_one_flipped_bit_is_named_and_replaced_by_the_next_send",
    "blob_missing": "integration/test_blobs_stores.py::test_bytes_come_back_and_keys_are_listed_and_deleted",
    "link_expired": "unit/test_blobs_signing.py::test_an_expired_address_opens_nothing",
    "over_quota": "unit/test_upload_quotas.py::test_urls_are_given_up_to_the_quota_and_for_not_a_byte_more",
    "store_full": "unit/test_blobs_folder.py::test_a_full_disk_is_called_full",
    "store_slow": "unit/test_blobs_folder.py::test_a_slow_disk_is_called_slow",
    "store_gone": "integration/test_blobs_transfer.py::test_patience_has_an_end_that_says_why",
    "store_refused": "integration/test_blobs_stores.py::test_wrong_credentials_are_named_and_not_shown",
    "leadership_lost": "integration/test_orchestrator_faults.py"
    "::test_of_two_orchestrators_on_one_database_the_newer_leads",
    "version": "migration/test_version_skew.py::test_a_node_may_be_one_release_ahead_and_no_more",
}
"""Codes that take more than a command: a store that fails, a month that passes, two orchestrators. The test that causes
it, which must name the code."""
