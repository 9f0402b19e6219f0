"""The Python SDK: send work to a Holdfast network, follow it, and get one clear answer.

    import holdfast

    with holdfast.Client() as client:
        job = client.jobs.run(["python3", "-c", "print(6 * 7)"])
        print(job.state, job.took_s)

    client.py  async_client.py         the public methods; no logic
    requests.py  content.py  results.py  array_results.py
                                       how each request is made, as steps; no I/O
    job_options.py  folders.py         the options of a job and the folder it sends; rejects invalid ones
    answers.py  retry.py  sse.py       how responses are read, and when a request is repeated
    log_lines.py                       a job's output, line by line
    transport.py  async_transport.py   run the steps over HTTP
    objects.py  html.py                jobs and nodes as objects, and how they are shown

The package knows the public HTTP types and nothing about how the orchestrator or a node works.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.client.endpoint import Endpoint

__all__ = ["Client", "Endpoint"]


def __getattr__(name: str) -> Any:
    """Import on first use: a caller that only looks up an address does not wait for the HTTP libraries."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.lower()}"), name)
