"""What a person typed for a job, as the id of what is meant by it: one job, or an array of them.

A name is looked up once, and the id is used from then on: another job of the same name that comes meanwhile is not
mixed up with it.
"""

from typing import TYPE_CHECKING

from holdfast.cli.array_items import PREFIX, is_array

if TYPE_CHECKING:
    from holdfast.client import Client

JOB_PREFIX = "job_"


def meant(client: "Client", named: str, *, live: bool = False) -> str:
    """By a name, the newest is meant, as an array if it is an item of one; with `live`, what has not ended, and
    refused where that is several. The beginning of an id is left to whoever is asked."""
    if named.startswith((PREFIX, JOB_PREFIX)):
        return named
    view = client.jobs.get(named, live=live)
    return view.array or view.id


def one_job(client: "Client", named: str, verb: str, *, live: bool = False) -> str:
    """The same where only a single job makes sense."""
    from holdfast.errors import Misuse

    found = meant(client, named, live=live)
    if is_array(found):
        raise Misuse(
            f"{named} is an array of jobs, and this {verb} one job",
            hint=f"`holdfast jobs --array {found}` lists the job of each item.",
        )
    return found


def one_array(client: "Client", named: str) -> str:
    """The same where only an array makes sense."""
    from holdfast.errors import Misuse

    found = meant(client, named)
    if not is_array(found):
        raise Misuse(f"{named} is one job, and no array", hint=f"`holdfast job show {found}` shows it.")
    return found
