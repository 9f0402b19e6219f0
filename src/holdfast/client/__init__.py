"""The Python SDK: send work to a Holdfast network, follow it, and get one clear answer.

    import holdfast

    with holdfast.Client() as client:
        job = client.jobs.run(["python3", "-c", "print(6 * 7)"])
        print(job.state, job.took_s)

    client.py  async_client.py         what can be asked, as methods; no logic
    questions.py  content.py  results.py  array_results.py
                                       how it is asked, as steps; no wire
    wishes.py  folders.py              what a job asks for, and what goes along; what nobody can mean
    answers.py  retry.py  sse.py       what an answer means, when to ask again
    log_lines.py                       a job's output, line by line
    transport.py  async_transport.py   the wires that carry steps out
    objects.py  html.py                jobs and nodes as they are handed out and shown

It knows the public HTTP types and nothing of how the orchestrator or a node works.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.client.endpoint import Endpoint

__all__ = ["Client", "Endpoint"]


def __getattr__(name: str) -> Any:
    """Imported when it is first used: whoever only asks where a network is waits for no wire."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.lower()}"), name)
