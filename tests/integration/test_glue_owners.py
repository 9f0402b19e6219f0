"""Who acts for an owner reaches nothing of another owner, by any route; and limits of requests hold."""

from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from glue_house import HandNode, House, folder_of, story

from holdfast.blobs import scan
from holdfast.model import Result
from holdfast.model.messages import HeldPhase
from holdfast.orchestrator.content import service as content_module

PRINTED = b"a secret\n"


async def a_job_of_ann(house: House, folder: Path) -> tuple[str, str, str]:
    """Ended well, with output and files: its id, its attempt, its manifest."""
    node = await HandNode(house).join()
    job = await house.submit("make", name="report")
    start = await node.started(job)
    await node.prints(start, PRINTED)
    name = await node.sends(start, folder)
    async with node.files() as http:
        assert (await http.post(node.at(start, "manifests"), json={"manifest": name})).status_code == 200
    node.declare(start, HeldPhase.FINISHED, Result(sha256(PRINTED).hexdigest(), len(PRINTED), manifest=name))
    await house.ended(job)
    return job, start.attempt, name


@pytest.mark.spec("A12", "J4")
def test_nothing_of_another_owners_job_is_reached_by_any_route(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        folder = folder_of(tmp_path / "made", a="1")
        job, attempt, manifest = await a_job_of_ann(house, folder)
        waiting = await house.submit("wait", name="waits", cpu_milli=7_950)
        blobs = [blob.sha for blob in scan(folder).manifest.blobs]
        asked = {"argv": ["x"], "cpu_milli": 1, "memory_mib": 1, "inputs": [{"name": "in", "job": job}]}
        routes = [
            ("GET", f"/v1/jobs/{job}", None),
            ("GET", f"/v1/jobs/{job[:12]}", None),
            ("GET", "/v1/jobs/report", None),
            ("GET", f"/v1/jobs/{job}/explain", None),
            ("GET", f"/v1/jobs/{job}/logs", None),
            ("GET", f"/v1/jobs/{job}/output/{attempt}/stdout", None),
            ("GET", f"/v1/events?job={job}", None),
            ("POST", f"/v1/jobs/{job}/rerun", None),
            ("POST", f"/v1/jobs/{job}/received", None),
            ("POST", f"/v1/jobs/{waiting}/stop", None),
            ("POST", f"/v1/jobs/{waiting}/move", {"to": "ant"}),
            ("GET", f"/v1/manifests/{manifest}", None),
            ("POST", f"/v1/manifests/{manifest}/links", {"blobs": blobs}),
            ("POST", "/v1/jobs", asked),
            ("POST", "/v1/jobs", {"argv": ["x"], "package": manifest}),
        ]
        async with house.acting_for("bob") as bob, house.acting_for("ann") as ann:
            for method, path, body in routes:
                refused = await bob.request(method, path, json=body)
                assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), f"{method} {path}"
                # not even the name of what it made, if bob did not bring that himself
                assert manifest not in refused.text or manifest in f"{path} {body}", f"{method} {path}"
            # and nothing happened
            assert house.job(waiting).live and house.store.keep(job) is not None
            assert [one["id"] for one in (await bob.get("/v1/jobs")).json()["jobs"]] == []
            assert [one["id"] for one in (await bob.get("/v1/jobs?owner=ann")).json()["jobs"]] == []
            # bob's own job is no way to ann's output
            own = await house.submit("mine", owner="bob", cpu_milli=7_950)
            refused = await bob.get(f"/v1/jobs/{own}/output/{attempt}/stdout")
            assert refused.status_code == 404 and PRINTED not in refused.content
            # while ann reaches all of it
            for method, path, body in routes:
                assert (await ann.request(method, path, json=body)).status_code in (200, 201, 409), f"{method} {path}"
            assert (await ann.get(f"/v1/jobs/{job}/output/{attempt}/stdout")).content == PRINTED

    story(tmp_path, tells)


@pytest.mark.spec("A12")
def test_the_journal_shows_an_owner_nothing_of_anothers_jobs(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        job = await house.submit("make", name="report")
        mine = await house.submit("mine", owner="bob")
        async with house.acting_for("bob") as bob:
            told = (await bob.get("/v1/events")).text
            assert job not in told and mine in told
            # and where a reader may not look, a cursor does not help
            again = await bob.get("/v1/events?after=0", headers={"Last-Event-ID": "0"})
            assert job not in again.text
        assert job in (await house.people.get("/v1/events")).text

    story(tmp_path, tells)


@pytest.mark.spec("A12", "J16")
def test_an_array_is_its_owners(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        body = {"job": {"argv": ["say", "{}"]}, "items": ["1", "2"]}
        async with house.acting_for("ann") as ann, house.acting_for("bob") as bob:
            array = (await ann.post("/v1/arrays", json=body)).json()["id"]
            for method, path in (("GET", ""), ("POST", "/stop"), ("POST", "/retry")):
                refused = await bob.request(method, f"/v1/arrays/{array}{path}")
                assert refused.status_code == 404, path
                assert all(job.live for job in house.store.jobs_of_array(array))
            assert (await ann.post(f"/v1/arrays/{array}/stop")).status_code == 200
            assert not any(job.live for job in house.store.jobs_of_array(array))

    story(tmp_path, tells)


@pytest.mark.spec("A12")
@pytest.mark.parametrize("owner", ["", " ann", "x" * 101, "a\x01b"])
def test_an_owner_that_is_no_name_is_refused(tmp_path: Path, owner: str) -> None:
    async def tells(house: House) -> None:
        async with house.acting_for("ann") as http:
            http.headers["x-holdfast-owner"] = owner
            answer = await http.get("/v1/jobs")
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")

    story(tmp_path, tells)


@pytest.mark.spec("A12")
def test_only_the_very_path_that_needs_no_token_is_open(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        async with house.http(house._people, "wrong") as stranger:
            assert (await stranger.get("/healthz")).status_code == 200
            for path in ("/healthz/", "/healthz/../v1/jobs", "/healthzz", "/healthz;/v1/jobs", "//v1/jobs"):
                answer: httpx.Response = await stranger.get(path)
                assert answer.status_code == 401, path

    story(tmp_path, tells)


@pytest.mark.spec("A12")
def test_questions_about_too_many_blobs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_module, "ASKED_MAX", 2)

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        start = await node.started(await house.submit("work"))
        name = await node.sends(start, folder_of(tmp_path / "made", a="1"))
        async with node.files() as http:
            assert (await http.post(node.at(start, "manifests"), json={"manifest": name})).status_code == 200
        for count, status in ((2, 200), (3, 400)):
            body = {"blobs": [[f"{n:064x}", 5] for n in range(count)]}
            for path in ("/v1/blobs/missing", "/v1/blobs/links"):
                assert (await house.people.post(path, json=body)).status_code == status, path
        async with house.acting_for("ann") as ann:
            links = await ann.post(f"/v1/manifests/{name}/links", json={"blobs": ["0" * 64] * 3})
            assert links.status_code == 400

    story(tmp_path, tells)
