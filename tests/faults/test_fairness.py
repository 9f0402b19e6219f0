"""Ten thousand jobs of one owner: another owner's first job waits for the next free slot, and no longer (SPEC J13)."""

import httpx
import msgspec
import pytest
from fault_network import SMALL, FaultNetwork

from holdfast.testing.processes import READY_S, wait_for
from holdfast.wire.http import JobRequest

MANY = 10_000
BATCH = 1_000
ONE_SLOT = {**SMALL, "cpu_milli": 1_000}


@pytest.mark.spec("J13")
@pytest.mark.timeout(400)
def test_ten_thousand_jobs_of_one_owner_do_not_delay_another_owners_first(network: FaultNetwork) -> None:
    # given one machine with one slot, and an owner who sends ten thousand jobs
    network.start_orchestrator()
    network.start_node("ant", flags=["--cpu", "1"])
    token = (network.home / "orchestrator" / "admin.token").read_text().strip()
    batch = msgspec.json.encode([JobRequest(argv=["true"], **ONE_SLOT) for _ in range(BATCH)])
    common = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with httpx.Client(base_url=network.up.url, headers=common, trust_env=False, timeout=120) as http:
        for _ in range(MANY // BATCH):
            answer = http.post("/v1/jobs/batch", content=batch, headers={"X-Holdfast-Owner": "crowd"})
            assert answer.status_code == 200
            assert all(view["phase"] for view in answer.json())
        began = network.entry("job.assigned").seq

        # when somebody else sends their first
        request = msgspec.json.encode(JobRequest(argv=["echo", "hello"], **ONE_SLOT))
        sent = http.post("/v1/jobs", content=request, headers={"X-Holdfast-Owner": "newcomer"})
        assert sent.status_code == 201
        job = sent.json()["id"]
    view = network.client().jobs.wait(job, timeout_s=READY_S)
    assert view.verdict == "succeeded"

    # then between its arrival and its start nobody else was given a slot: the next free one was theirs
    queued = network.entry("job.queued", job=job).seq
    assigned = network.entry("job.assigned", job=job).seq
    overtaken = [e for e in network.journal("job.assigned", after=queued) if e.seq < assigned]
    assert overtaken == []
    # and it did have to wait: the crowd was there first, and still is
    assert queued > began
    crowd = network.client().jobs.list(owner="crowd", phase="queued", limit=1000)
    assert crowd.next is not None
    wait_for(lambda: network.journal("job.assigned", after=assigned), "the crowd to go on")
