"""Every fsync, rename, send and spawn of the shells fails once, or is the last thing that its process does, and
nothing is lost: each job ends once with the right bytes, nobody is blamed who is not at fault, nothing is left behind.

The sites are read from the source (fault_sites.py). A network goes through what networks go through, and stories do
what no job comes by; both are watched first, to learn which of them visits which site. Then each site gets its faults,
one at a time, in the first that visits it. A site that nothing visits must be listed here, with the reason.

`make test` tries one way for each site, in turn, and all three where that is quick; `make fault-sites` tries all.

Every open, read, listing and stat fails in passing, once and for two seconds (read_sites.py): the job succeeds with all
of its files and output, and nobody is struck or blamed. `make test` tries a sample.
"""

import json
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import read_sites
from fault_sites import FAILS, PASSING_WAYS, READS, WAYS, all_sites, kind_of
from read_sites import BY_CHANCE, PASSING_WAYS_OF, SAMPLE
from site_network import PHASES, SiteNetwork
from site_nursery import Nursed
from site_stories import STAGE, STORIES

import holdfast
from holdfast.testing.processes import READY_S

pytestmark = pytest.mark.xdist_group("faults-sites")

PACKAGE = Path(holdfast.__file__).parent
FOUND = all_sites(PACKAGE)
EVERY = [site for site in FOUND if kind_of(site) not in READS]
ALL_WAYS = "HOLDFAST_TEST_ALL_FAULTS"
"""Set by `make fault-sites`."""

STEPS = "a step of the writes that others call; tests/unit/test_durable.py cuts these at every step"
ENGINE = "needs a container engine; tests/integration/test_container_faults.py kills engine and supervisor"
LISTED = {
    **dict.fromkeys([site for site in EVERY if site.startswith("durable.py:")], STEPS),
    "node/images/image_cache.py:Images._write_ledger:write": f"{ENGINE}; a ledger that is not written costs room, "
    "not a job",
    "node/runtimes/container.py:_fork:spawn": ENGINE,
    "node/runtimes/engine_api.py:Engine.ask:send": ENGINE,
    "diagnostics/machine.py:_asked_engine:send": "asks for an engine's version, for the doctor to show; keeps nothing",
    "blobs/s3.py:S3Store.delete_while.let_go:send": "needs an S3 store; tests/faults/test_blob_store.py cuts the line "
    "to one",
    **dict.fromkeys(
        ("node/attempt/index_proxy.py:IndexProxy._forward:send", "node/attempt/index_proxy.py:_answer:send"),
        "passes on bytes of a package; pip asks again or says so; tests/unit/test_index_proxy.py",
    ),
    "orchestrator/content/manifest_checks.py:_in_process:spawn": "needs a manifest of more than 256 KiB; "
    "tests/unit/test_manifest_checks.py lets the start fail and the process die",
    "blobs/folder.py:FolderStore._scrub:rename": "needs content that rotted (tests/integration/test_bit_rot.py); "
    "what is not set aside is found by the next scrub",
    "orchestrator/connections/http_server.py:HttpConnection.turn_away:send": "a refusal to a stranger, on a connection "
    "that is closed anyway; tests/integration/test_connection_limits.py",
    "orchestrator/logs/log_files.py:LogStore._opened:fsync:3": "needs a log that another process left unsynced; "
    "tests/unit/test_log_store.py lets it fail",
    **dict.fromkeys(
        [
            "cli/supervisor.py:_Child.__init__:spawn",
            "cli/supervisor.py:_Child.start:spawn",
            "cli/supervisor.py:Supervisor._write:write",
            "cli/supervisor.py:detached:spawn",
            "cli/supervisor.py:detached:spawn:2",
        ],
        "starts an orchestrator and a node for a person, and starts again what ended; these networks start their own",
    ),
    "node/images/image_builds.py:_systemctl:spawn": ENGINE,
    **dict.fromkeys(
        [f"orchestrator/api/app.py:turn_away:{one}" for one in ("send", "send:2")],
        "a refusal to a stranger; tests/integration/test_connection_limits.py",
    ),
    "client/array_results.py:ArrayResults._make_way:rename": "one rename of a whole folder; its failure is told as "
    "`in_the_way`, and nothing was fetched yet",
}
"""Sites that neither the network nor a story visits, and why that is."""

SITES = [site for site in EVERY if site not in LISTED]
OF_A_CHILD = {"node/attempt/venv_builder.py:main:send"}
"""The process that dies there is a child, and whoever waits for it says that it failed."""


QUICK = ("client/", "cli/", "checkpoint.py")
"""Their stories take no time: all ways, always."""


def ways(number: int, site: str) -> tuple[str, ...]:
    return WAYS if os.environ.get(ALL_WAYS) or site.startswith(QUICK) else (WAYS[number % len(WAYS)],)


CASES = [pytest.param(site, way, id=f"{site}-{way}") for n, site in enumerate(SITES) for way in ways(n, site)]

READ_SITES = [site for site in FOUND if kind_of(site) in READS and not read_sites.unvisited(site)]
READ_CASES = [(site, way) for site in READ_SITES for way in PASSING_WAYS_OF[kind_of(site)]]
PASSING_CASES = [
    pytest.param(site, way, id=f"{site}-{way}")
    for site, way in (READ_CASES if os.environ.get(ALL_WAYS) else SAMPLE.items())
]


class Watched:
    """The network, the stories, and which of them visits which site first."""

    def __init__(self, network: SiteNetwork, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.phases: dict[str, str] = {}
        self.stories: dict[str, str] = {}
        self._stage = ""

    def learn(self) -> None:
        network, faults = self.network, self.network.faults
        network.do_job()  # what is done once and kept, such as the look of an empty disk, is not for every job
        for name, go in PHASES.items():
            faults.forget()
            go(network)
            network.check_whole()
            self.phases |= {site: name for site in faults.seen() if site not in self.phases}
        self._set_stage()
        for name in STORIES:
            faults.forget()
            folder = self.fresh()
            self.expect(name, "do", folder)
            self.expect(name, "done", folder)
            self.stories |= {site: name for site in faults.seen() if site not in (self.stories | self.phases)}

    def _set_stage(self) -> None:
        """What the stories find in the network."""
        network, client = self.network, self.network.client()
        small = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}
        job = client.jobs.submit(["sh", "-c", "echo made | tee out"], **small)
        array = client.arrays.submit(["echo", "{}"], ["a", "b"], **small)
        job.wait(timeout_s=READY_S)
        client.arrays.wait(array.id, timeout_s=READY_S)
        data = network.home / "orchestrator"
        token = (data / "admin.token").read_text().strip()
        home = str(network.nodes["ant"].home)
        said = {
            "url": network.up.url,
            "token": token,
            "job": job.id,
            "array": array.id,
            "data": str(data),
            "home": home,
        }
        self._stage = json.dumps(said)

    def fresh(self) -> Path:
        folder = self.folder / secrets.token_hex(6)
        folder.mkdir()
        return folder

    def play(self, story: str, stage: str, folder: Path) -> int:
        """One stage of a story, in a process of its own; its exit status."""
        log = self.folder / "log"
        asked = {"story": story, "stage": stage, "folder": str(folder), "log": str(log), "env": {STAGE: self._stage}}
        return Nursed(self.network.nursery, asked).wait(READY_S)

    def expect(self, story: str, stage: str, folder: Path) -> None:
        status = self.play(story, stage, folder)
        assert status == 0, f"`{stage}` of {story!r} ended with {status}:\n{(self.folder / 'log').read_text()[-2000:]}"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    network = SiteNetwork(tmp_path_factory.mktemp("sites"))
    try:
        network.begin()
        watched = Watched(network, tmp_path_factory.mktemp("stories"))
        watched.learn()
        yield watched
    finally:
        network.close()


@pytest.mark.spec("J14", "N9")
def test_every_site_is_visited_or_listed(watched: Watched) -> None:
    # given every site of the source, and those that the network and the stories visited
    visited = watched.phases.keys() | watched.stories.keys()
    # then none is missing, and nothing is listed that is not there, or is visited after all
    assert [site for site in SITES if site not in visited] == []
    assert [site for site in LISTED if site not in EVERY] == []
    assert [site for site in LISTED if site in visited and LISTED[site] != STEPS] == []
    # and the same of those that read
    assert [site for site in READ_SITES if site not in visited and site not in BY_CHANCE] == []
    assert [
        start for start in (*read_sites.ROOMS, *read_sites.SITES) if not any(s.startswith(start) for s in FOUND)
    ] == []
    assert [site for site in read_sites.SITES if site not in FOUND or site in visited] == []
    assert {*SAMPLE.items()} <= {*READ_CASES} and set(BY_CHANCE) <= set(READ_SITES)


@pytest.mark.spec("J14", "J4", "J5", "J7", "N9")
@pytest.mark.parametrize(("site", "way"), CASES)
def test_a_fault_at_a_site_loses_nothing(site: str, way: str, watched: Watched) -> None:
    if site in watched.phases:
        in_the_network(watched, site, way)
    elif site in watched.stories:
        in_a_story(watched, site, way)
    else:
        pytest.fail(f"nothing visits {site}: write a story that does (site_stories.py), or list it with the reason")


def in_the_network(watched: Watched, site: str, way: str) -> None:
    network, faults = watched.network, watched.network.faults
    # What is done once in a process and kept is come by when another one takes its place.
    phases = [watched.phases[site]] * 2 + ["agent", "machine", "orchestrator"]
    before = network.now()
    # given that the next visit to the site goes wrong
    faults.arm(site, way)
    try:
        # when the network goes through what comes by it (which ends well only if every job did: SiteNetwork.check)
        for phase in phases:
            PHASES[phase](network)
            if faults.taken(site):
                break
        else:
            network.check_whole()  # somebody asks whether the orchestrator finds anything wrong
        if site in BY_CHANCE and not faults.taken(site):
            return
        # then it did go wrong
        assert faults.taken(site), "nobody came by"
    finally:
        faults.disarm()
    # and all machines take work again, with nothing left on them
    network.check_whole()
    # and a passing error is no reason to set a machine aside: one strike of three, at most
    journal = network.journal(after=before)
    assert [entry.text for entry in journal if entry.kind == "node.quarantined"] == []
    strikes = [entry.text for entry in journal if entry.kind == "node.strike"]
    assert len(strikes) <= (way not in PASSING_WAYS) and "invalid_result" not in str(strikes), strikes


@pytest.mark.spec("J10", "J4", "N5")
@pytest.mark.parametrize(("site", "way"), PASSING_CASES)
def test_a_read_that_fails_in_passing_loses_nothing_and_blames_nobody(site: str, way: str, watched: Watched) -> None:
    if site in watched.phases:
        in_the_network(watched, site, way)
    elif site in watched.stories:
        in_a_story(watched, site, way)
    else:
        assert site in BY_CHANCE, f"nothing visits {site}: see read_sites.py"


def in_a_story(watched: Watched, site: str, way: str) -> None:
    story, faults = watched.stories[site], watched.network.faults
    folder = watched.fresh()
    # given that the next visit to the site goes wrong
    faults.arm(site, way)
    try:
        # when the story is told (what reads the end of an earlier one is come by when it is told again)
        status = watched.play(story, "do", folder)
        if way in PASSING_WAYS and not faults.taken(site):
            assert status == 0
            status = watched.play(story, "do", folder)
        # then it died there, or went on, or said what was wrong; never in another way
        assert faults.taken(site), "nobody came by"
        died = (1,) if site in OF_A_CHILD else (-signal.SIGKILL,)
        assert status in ((0, 1) if way in (FAILS, *PASSING_WAYS) else died), (folder.parent / "log").read_text()[
            -2000:
        ]
    finally:
        faults.disarm()
    # and nothing is half there, and done again it ends as if nothing had happened
    watched.expect(story, "holds", folder)
    watched.expect(story, "do", folder)
    watched.expect(story, "done", folder)


@pytest.mark.spec("J14")
def test_a_call_is_found_however_it_is_written(tmp_path: Path) -> None:
    # given a shell with one call of every kind, called and handed on, beside calls that only look like one
    package = tmp_path / "holdfast"
    (package / "node").mkdir(parents=True)
    (package / "kernel").mkdir()
    (package / "kernel" / "pure.py").write_text("os.fork()")
    (package / "node" / "shell.py").write_text(
        """
class Keeper:
    async def keep(self, draft, path, file, http, call, send):
        os.fsync(file)
        await asyncio.to_thread(os.fdatasync, file)
        os.rename(draft, path)
        draft.replace(path)
        text.replace("a", "b")
        structs.replace(row, size=1)
        durable_write(path, b"")
        subprocess.run(["true"])
        await call.write(b"")
        await http.request("GET", "/")
        await send({"type": "http.response.body"})
        file.write(b"")


def start():
    os.fork(), os.fork()
"""
    )
    # then its sites have these names, and no others
    keep = "node/shell.py:Keeper.keep"
    assert all_sites(package) == [
        f"{keep}:fsync",
        f"{keep}:fsync:2",
        f"{keep}:rename",
        f"{keep}:rename:2",
        f"{keep}:write",
        f"{keep}:spawn",
        f"{keep}:send",
        f"{keep}:send:2",
        f"{keep}:send:3",
        "node/shell.py:start:spawn",
        "node/shell.py:start:spawn:2",
    ]


@pytest.mark.spec("J14")
def test_files_are_replaced_in_one_place() -> None:
    # given the sites outside durable.py that rename something they wrote themselves
    own = {site for site in EVERY if kind_of(site) == "rename" and not site.startswith("durable.py:")}
    # then each is one of these, where a file is not written as a whole and renamed
    assert own == set(RENAMES), "a file that is written whole and renamed is for holdfast.durable to write"


RENAMES = {
    "orchestrator/backup.py:_give_name:rename": "a folder",
    "node/attempt/attempt_folders.py:claim:rename": "a second name for a file that is there",
    "node/attempt/attempt_folders.py:remove:rename": "a folder on its way out",
    "node/runtimes/lent.py:lay_out:rename": "a folder",
    "node/runtimes/scratch.py:_format:rename": "a disk image, written at its places only",
    "node/attempt/venvs.py:Venvs._make_room:rename": "a folder on its way out",
    "node/attempt/venvs.py:Venvs._keep:rename": "a folder",
    "blobs/folder.py:FolderStore._scrub:rename": "content that is set aside",
    "blobs/folder.py:FolderStore._settle:rename": "written piece by piece as it arrives",
    "blobs/folder.py:FolderStore._settle:rename:2": "written piece by piece as it arrives",
    "blobs/folder.py:FolderStore._promote:rename": "a second name for a file that is there",
    "blobs/unpacking.py:Unpacking._put_in_place:rename": "beneath a folder that a stranger may change meanwhile",
    "blobs/unpacking.py:Unpacking._link:rename": "a symbolic link",
    "client/array_results.py:ArrayResults._make_way:rename": "a folder",
    "client/results.py:Results._fetch:rename": "written piece by piece as it arrives",
    "checkpoint.py:_put:rename": "this one file is lent to jobs alone",
    "checkpoint.py:_remove:rename": "a folder on its way out",
}
