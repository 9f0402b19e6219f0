"""Resolves what a person typed for a job to an id: of one job, or of an array.

A name is looked up once, and the id is used from then on: another job with the same name that is submitted meanwhile is
not confused with it.
"""

from typing import TYPE_CHECKING

from holdfast.cli.array_items import PREFIX, is_array

if TYPE_CHECKING:
    from holdfast.client import Client

JOB_PREFIX = "job_"


def meant(client: "Client", named: str, *, live: bool = False) -> str:
    """A name means the newest job, or its array if it is an item of one. With `live`, it means the job that has not
    ended, and is refused if there are several. The beginning of an id is resolved by the orchestrator."""
    if named.startswith((PREFIX, JOB_PREFIX)):
        return named
    view = client.jobs.get(named, live=live)
    return view.array or view.id


def one_job(client: "Client", named: str, verb: str, *, live: bool = False) -> str:
    """Like `meant`, where only a single job makes sense."""
    from holdfast.errors import Misuse

    found = meant(client, named, live=live)
    if is_array(found):
        raise Misuse(
            f"{named} is an array of jobs, and this command {verb} one job",
            hint=f"`holdfast jobs --array {found}` lists the job of each item.",
        )
    return found


def one_array(client: "Client", named: str) -> str:
    """Like `meant`, where only an array makes sense."""
    from holdfast.errors import Misuse

    found = meant(client, named)
    if not is_array(found):
        raise Misuse(f"{named} is a job, not an array", hint=f"`holdfast job show {found}` shows it.")
    return found
