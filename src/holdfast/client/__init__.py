"""The Python SDK: send work to a Holdfast network, follow it, and get one clear answer.

    from holdfast.client import Client

    with Client.find() as client:
        job = client.jobs.run(["python3", "-c", "print(6 * 7)"])
        print(job.result_sha256)

It knows the public HTTP types and nothing of how the orchestrator or a node works.
"""

from holdfast.client.client import Client
from holdfast.client.endpoint import Endpoint

__all__ = ["Client", "Endpoint"]
