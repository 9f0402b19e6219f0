"""Images are pulled from a real registry and built by real engines; every way to fail names whose fault it is."""

import asyncio
import contextlib
import http.server
import io
import os
import signal
import socket
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.model import Blame, Failure, FailureCode
from holdfast.node.images.image_cache import Image, ImageLimits, Images, NoImage
from holdfast.node.images.image_names import REASONS
from holdfast.node.runtimes import scratch
from holdfast.testing.engines import Docker, EngineService, Registry
from holdfast.testing.processes import wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("engines"), pytest.mark.timeout(300)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> EngineService:
    return request.getfixturevalue(request.param)


@pytest.fixture
def up(registry: Registry) -> Iterator[Registry]:
    """The registry, which a test may stop."""
    if not registry.running():
        registry.start()
    yield registry
    if not registry.running():
        registry.start()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An image name of this test's own."""
    return "test/" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-").replace("--", "-")


def unlike(size: int = 1_000) -> bytes:
    """A layer like no other, so that no engine has it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("content")
        entry.size = size
        tar.addfile(entry, io.BytesIO(os.urandom(size)))
    return out.getvalue()


@asynccontextmanager
async def images(
    engine: EngineService, home: Path, limits: ImageLimits | None = None, **more: Any
) -> AsyncIterator[Images]:
    found = Images(engine.socket, home, limits, **({"private": True} | more))
    try:
        yield found
    finally:
        await found.close()


async def failure(doing: Any) -> Failure:
    with pytest.raises(NoImage) as caught:
        await doing
    return caught.value.failure


def pass_s(seconds: float) -> None:
    """For every deadline of the running loop it is that much later."""
    loop = asyncio.get_running_loop()
    loop.time = lambda now=loop.time: now() + seconds  # pyright: ignore[reportAttributeAccessIssue]


# --- pulling ---


@pytest.mark.spec("J1", "J2", "J11")
async def test_an_image_is_pulled_once_by_its_digest_and_never_again(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    reference = up.add_image(name, unlike(200_000))
    told: list[tuple[str, int, int]] = []
    async with images(engine, tmp_path) as first:
        got = await first.ensure(reference, "att_1", lambda *words: told.append(words))
    assert got.got and got.reference == reference
    assert told and told[-1][0] == "image" and told[-1][1] == told[-1][2] > 0
    # when the registry is gone, and the agent started anew
    up.stop()
    async with images(engine, tmp_path) as second:
        again = await second.ensure(reference, "att_2")
    assert (again.id, again.reference, again.got) == (got.id, reference, False)


@pytest.mark.spec("J11")
async def test_a_tag_is_resolved_to_a_digest_and_that_is_said(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    reference = up.add_image(name, unlike(), "v1")
    async with images(engine, tmp_path) as found:
        got = await found.ensure(f"{up.address}/{name}:v1", "att_1")
        assert got.reference == reference
        assert (await found.ensure(f"{up.address}/{name}:v1", "att_2")).reference == reference


@pytest.mark.spec("J7", "N13")
async def test_a_registry_that_is_down_is_the_networks_fault_and_may_be_tried_again(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    reference = up.add_image(name, unlike())
    up.stop()
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.ensure(reference, "att_1"))
        assert wrong.code is FailureCode.NETWORK, wrong
        assert wrong.meaning.retryable
        # and once it is up, it works
        up.start()
        assert (await found.ensure(reference, "att_1")).got


@pytest.mark.spec("J7")
@pytest.mark.parametrize("missing", ["test/there-is-none:v1", f"test/there-is-none@sha256:{'0' * 64}"])
async def test_an_image_that_does_not_exist_is_the_users_fault(
    engine: EngineService, up: Registry, tmp_path: Path, missing: str
) -> None:
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.ensure(f"{up.address}/{missing}", "att_1"))
    assert wrong.code is FailureCode.IMAGE, wrong
    assert wrong.meaning.blame is Blame.USER and not wrong.meaning.retryable


@pytest.mark.spec("J7", "J11")
async def test_a_layer_that_is_not_what_its_digest_says_is_refused(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    # given a registry whose storage was tampered with
    reference = up.add_image(name, unlike(100_000))
    (layer,) = up.layers(reference)
    content = bytearray(layer.read_bytes())
    content[len(content) // 2] ^= 1
    layer.write_bytes(content)
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.ensure(reference, "att_1"))
        assert wrong.code is FailureCode.IMAGE, wrong
        assert await found.ensure(up.add_image(name, unlike()), "att_1")


@pytest.mark.spec("J7", "J11")
async def test_a_description_that_is_not_what_its_digest_says_is_refused(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    reference = up.add_image(name, unlike())
    described = up.blob(reference.partition("@")[2])
    described.write_bytes(described.read_bytes().replace(b'"schemaVersion"', b' "schemaVersion"'))
    async with images(engine, tmp_path) as found:
        assert (await failure(found.ensure(reference, "att_1"))).code is FailureCode.IMAGE


@pytest.mark.spec("N13", "J3")
async def test_what_many_want_is_pulled_once_and_who_stops_waiting_disturbs_nobody(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    reference = up.add_image(name, unlike(20_000_000))
    async with images(engine, tmp_path) as found:
        # given a registry that is slow for as long as the first of them waits
        up.signal(signal.SIGSTOP)
        try:
            waiting = [asyncio.create_task(found.ensure(reference, f"att_{n}")) for n in range(5)]
            await asyncio.wait(waiting, timeout=0.5)
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
        finally:
            up.signal(signal.SIGCONT)
        got = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(got[0], asyncio.CancelledError)
    assert len({image.id for image in got[1:] if isinstance(image, Image)}) == 1
    assert up.fetches(name) <= 2  # the layer and the configuration


@pytest.mark.spec("N13", "H6")
async def test_a_pull_that_hangs_is_given_up_and_delays_nothing_else(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    # given a registry that takes calls and never answers
    with socket.create_server(("127.0.0.1", 0), backlog=16) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        async with images(engine, tmp_path, ImageLimits(seconds_max=600)) as found:
            hanging = asyncio.create_task(found.ensure(f"{address}/test/never:v1", "att_1"))
            # when another image is wanted, then it is there while the first hangs
            assert (await found.ensure(up.add_image(name, unlike()), "att_2")).got
            assert not hanging.done()
            # and when its time is over, it is given up
            pass_s(600)
            assert (await failure(hanging)).code is FailureCode.NETWORK


@pytest.mark.spec("N5", "N13")
async def test_a_stranger_cannot_have_the_engine_ask_around_in_the_nodes_own_network(
    docker: Docker, up: Registry, tmp_path: Path
) -> None:
    before = up.log.read_text()
    async with images(docker, tmp_path, private=False) as found:
        wrong = await failure(found.ensure(f"{up.address}/test/x:v1", "att_1"))
    assert wrong.code is FailureCode.IMAGE
    assert up.log.read_text() == before


@pytest.mark.spec("N5")
async def test_an_image_of_the_operators_own_is_given_only_where_the_operator_says_so(
    engine: EngineService, tmp_path: Path, up: Registry
) -> None:
    own = f"{up.address}/operators/own"
    engine.add_image(unlike(), own)
    async with images(engine, tmp_path) as found:
        assert (await failure(found.ensure(f"{own}:latest", "att_1"))).code is FailureCode.IMAGE
    async with images(engine, tmp_path, local=[own]) as found:
        assert not (await found.ensure(f"{own}:latest", "att_1")).got


@pytest.mark.spec("N4", "N13")
async def test_an_image_larger_than_the_node_takes_is_refused_and_not_kept(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    reference = up.add_image(name, unlike(3_000_000))
    async with images(engine, tmp_path, ImageLimits(image_bytes_max=1_000_000)) as found:
        wrong = await failure(found.ensure(reference, "att_1"))
        assert wrong.code is FailureCode.IMAGE and "1000000" in wrong.detail
    listed = engine.api.call("GET", "/images/json")
    assert not [image for image in listed if any(name in text for text in image.get("RepoDigests") or ())]


@pytest.mark.spec("N4")
async def test_what_nobody_holds_goes_when_there_is_too_much_the_longest_unused_first(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    # given room for two images, and three that were got; the first is still held
    references = [up.add_image(f"{name}-{n}", unlike(1_000_000)) for n in range(3)]
    async with images(engine, tmp_path, ImageLimits(all_bytes_max=2_500_000)) as found:
        first = await found.ensure(references[0], "att_0")
        second = await found.ensure(references[1], "att_1")
        await found.release("att_1")
        third = await found.ensure(references[2], "att_2")
        # then the one that nobody held is gone, and is pulled again when it is wanted
        ids = {image["Id"].removeprefix("sha256:") for image in engine.api.call("GET", "/images/json?all=1")}
        assert {i.id.removeprefix("sha256:") for i in (first, third)} <= ids
        assert second.id.removeprefix("sha256:") not in ids
        await found.release("att_0")
        assert (await found.ensure(references[1], "att_1")).got


@pytest.mark.spec("J7", "N4")
async def test_a_full_disk_is_the_nodes_fault(up: Registry, name: str, tmp_path: Path) -> None:
    # given an engine whose disk is too small for the image
    reference = up.add_image(name, unlike(60_000_000))
    disk = tmp_path / "disk"
    disk.mkdir()
    scratch.make(str(disk), ("data",), 48, 0)
    try:
        with Docker(data=disk / "data") as engine:
            async with images(engine, tmp_path) as found:
                wrong = await failure(found.ensure(reference, "att_1"))
    finally:
        scratch.detach(str(disk))
    assert wrong.code is FailureCode.NODE_DISK_FULL, wrong
    assert wrong.meaning.blame is Blame.PROVIDER


@pytest.mark.spec("J7")
async def test_an_engine_that_is_away_is_the_providers_fault(tmp_path: Path) -> None:
    found = Images(str(tmp_path / "socket"), tmp_path, private=True)
    wrong = await failure(found.ensure("127.0.0.1:1/test/x:v1", "att_1"))
    await found.close()
    assert wrong.code is FailureCode.RUNTIME_FAULT, wrong


# --- building ---


@pytest.fixture
def base(up: Registry, busybox: bytes) -> str:
    return up.add_image("test/base", busybox)


def project(folder: Path, dockerfile: str, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    for path, text in files.items():
        (folder / path).write_text(text)
    return folder


@pytest.mark.spec("J1", "J3")
async def test_an_image_is_built_from_a_folder_and_an_equal_one_is_found_again(
    engine: EngineService, base: str, tmp_path: Path
) -> None:
    text = "ARG BASE\nFROM ${BASE}\nARG WORD\nCOPY greeting /greeting\nRUN echo $WORD >> /greeting\n"
    folder = project(tmp_path / "one", text, greeting="hello\n")
    told: list[tuple[str, int, int]] = []
    async with images(engine, tmp_path) as found:
        args = {"BASE": base, "WORD": "world"}
        first = await found.build(folder, "att_1", args=args, told=lambda *words: told.append(words))
        assert first.got
        assert ("build", 5, 5) in told or told[-1][1] == told[-1][2]
        # when an equal folder is built elsewhere on another day, then nothing is done
        twin = project(tmp_path / "two", text, greeting="hello\n")
        os.utime(twin / "greeting", (1, 1))
        second = await found.build(twin, "att_2", args=args)
        assert (second.id, second.got) == (first.id, False)
        # and another word is another image
        other = await found.build(folder, "att_3", args=args | {"WORD": "moon"})
        assert other.id != first.id and other.got


@pytest.mark.spec("J7", "J1")
async def test_a_dockerfile_that_fails_is_the_users_fault_and_its_last_words_are_shown(
    engine: EngineService, base: str, tmp_path: Path
) -> None:
    folder = project(tmp_path / "one", f"FROM {base}\nRUN echo this is why; exit 3\n")
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.build(folder, "att_1"))
    assert wrong.code is FailureCode.BUILD, wrong
    assert "this is why" in wrong.detail
    assert wrong.meaning.blame is Blame.USER


@pytest.mark.spec("J7")
@pytest.mark.parametrize("text", ["FROM scratch\nNONSENSE\n", "FROM scratch\nCOPY missing /x\n", ""])
async def test_a_dockerfile_that_makes_no_sense_is_the_users_fault(
    engine: EngineService, tmp_path: Path, text: str
) -> None:
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.build(project(tmp_path / "one", text), "att_1"))
    assert wrong.code is FailureCode.BUILD, wrong


@pytest.mark.spec("J7", "N5")
@pytest.mark.parametrize("path", ["Missing", "../outside", "/etc/passwd", "link", ""])
async def test_only_a_file_of_the_folder_is_a_dockerfile(docker: Docker, tmp_path: Path, path: str) -> None:
    folder = project(tmp_path / "one", "FROM scratch\n")
    (folder / "link").symlink_to("/etc/passwd")
    (tmp_path / "outside").write_text("FROM scratch\n")
    async with images(docker, tmp_path) as found:
        assert (await failure(found.build(folder, "att_1", dockerfile=path))).code is FailureCode.BUILD


@pytest.mark.spec("J7")
async def test_a_build_whose_base_cannot_be_reached_may_be_tried_again(
    engine: EngineService, up: Registry, name: str, tmp_path: Path
) -> None:
    reference = up.add_image(name, unlike())
    up.stop()
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.build(project(tmp_path / "one", f"FROM {reference}\nLABEL a=b\n"), "att_1"))
    assert wrong.code is FailureCode.NETWORK, wrong


@pytest.mark.spec("N13", "H6")
async def test_a_build_without_end_is_given_up_and_its_steps_end(
    engine: EngineService, base: str, tmp_path: Path
) -> None:
    mark = str(os.getpid() * 1_000_000)
    folder = project(tmp_path / "one", f"FROM {base}\nRUN sleep {mark}\n")
    async with images(engine, tmp_path, ImageLimits(seconds_max=600)) as found:
        building = asyncio.create_task(found.build(folder, "att_1"))
        await asyncio.to_thread(wait_for, lambda: running(mark), "the step to run")
        pass_s(600)
        wrong = await failure(building)
    assert wrong.code is FailureCode.BUILD and "600 s" in wrong.detail, wrong
    await asyncio.to_thread(wait_for, lambda: not running(mark), "the step to end")


def running(mark: str) -> bool:
    """Whether a process of the machine has this among its words."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark in process.cmdline():
                return True
    return False


@pytest.mark.spec("N4")
async def test_a_build_has_no_network(engine: EngineService, base: str, tmp_path: Path) -> None:
    folder = project(tmp_path / "one", f"FROM {base}\nRUN cat /proc/net/dev >&2; exit 1\n")
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.build(folder, "att_1"))
    devices = [line.split(":")[0].strip() for line in wrong.detail.splitlines() if line.strip().endswith(" 0")]
    assert devices == ["lo"], wrong.detail


@pytest.mark.spec("N13")
async def test_a_folder_that_is_too_large_is_refused(docker: Docker, tmp_path: Path) -> None:
    folder = project(tmp_path / "one", "FROM scratch\n", big="x" * 100_000)
    async with images(docker, tmp_path, ImageLimits(context_bytes_max=50_000)) as found:
        wrong = await failure(found.build(folder, "att_1"))
    assert wrong.code is FailureCode.BUILD and "50000" in wrong.detail


@pytest.fixture
def loopback() -> Iterator[tuple[str, list[str]]]:
    """A server on the node's loopback: its address, and the requests that reached it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"secret")

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.mark.spec("N5", "N13")
@pytest.mark.parametrize(
    "text",
    [
        "FROM scratch\nADD http://{at}/x /x\n",
        "FROM scratch\nENV A=http:\nADD $A//{at}/x /x\n",
        "FROM {at}/some/image\n",
        "ARG BASE={at}/some/image\nFROM $BASE\n",
        "FROM scratch\nCOPY --from={at}/some/image / /\n",
    ],
)
async def test_no_line_of_a_dockerfile_leads_into_the_nodes_own_network(
    engine: EngineService, loopback: tuple[str, list[str]], tmp_path: Path, text: str
) -> None:
    at, asked = loopback
    async with images(engine, tmp_path, private=False) as found:
        wrong = await failure(found.build(project(tmp_path / "one", text.replace("{at}", at)), "att_1"))
    assert wrong.code is FailureCode.BUILD, wrong
    assert asked == []


@pytest.mark.spec("N5", "N13")
async def test_an_image_cannot_fetch_an_address_when_it_is_built_upon(
    docker: Docker, up: Registry, name: str, loopback: tuple[str, list[str]], tmp_path: Path
) -> None:
    at, asked = loopback
    base = up.add_image(name, unlike(), config={"OnBuild": [f"ADD http://{at}/x /x"]})
    async with images(docker, tmp_path) as found:
        wrong = await failure(found.build(project(tmp_path / "one", f"FROM {base}\nLABEL a=b\n"), "att_1"))
    assert wrong.code is FailureCode.BUILD and "fetches an address" in wrong.detail, wrong
    assert asked == []


@pytest.mark.spec("N5")
async def test_a_build_is_not_given_an_image_of_the_operators_own(
    engine: EngineService, up: Registry, tmp_path: Path
) -> None:
    own = f"{up.address}/operators/secret"
    engine.add_image(unlike(), own)
    folder = project(tmp_path / "one", f"FROM {own}\nLABEL a=b\n")
    async with images(engine, tmp_path) as found:
        assert (await failure(found.build(folder, "att_1"))).code is FailureCode.BUILD
    async with images(engine, tmp_path, local=[own]) as found:
        assert (await found.build(folder, "att_1")).got


# --- limits of a build, and what its errors tell ---

SPAWN = "i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; echo all $i"


@pytest.mark.spec("N13", "J6")
@pytest.mark.parametrize(
    ("step", "asked", "says"),
    [
        (SPAWN, {"pids": 30}, "ork"),
        ("tail /dev/zero || exit 77", {"memory_mib": 32}, ""),
        ("dd if=/dev/zero of=/big bs=1M count=48; sleep 600", {"disk_mib": 16}, "more than 16 MiB"),
    ],
    ids=["processes", "memory", "disk"],
)
async def test_the_limits_of_the_job_hold_for_the_steps_of_its_build(
    engine: EngineService, base: str, tmp_path: Path, step: str, asked: dict[str, int], says: str
) -> None:
    folder = project(tmp_path / "one", f"FROM {base}\nRUN {step}\n")
    before = groups()
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.build(folder, "att_1", asked=asked))
    assert wrong.code is FailureCode.BUILD and says in wrong.detail, wrong
    assert "all 200" not in wrong.detail
    assert groups() <= before


@pytest.mark.spec("N13", "J6")
async def test_an_image_that_has_more_than_the_job_may_keep_is_not_kept(
    docker: Docker, base: str, tmp_path: Path
) -> None:
    """However quickly it was written."""
    folder = project(tmp_path / "one", f"FROM {base}\nRUN dd if=/dev/zero of=/big bs=1M count=17\n")
    async with images(docker, tmp_path) as found:
        wrong = await failure(found.build(folder, "att_1", asked={"disk_mib": 16}))
        assert wrong.code is FailureCode.BUILD and "more than 16 MiB" in wrong.detail, wrong
        assert (await found.build(folder, "att_1", asked={"disk_mib": 18})).got


def groups() -> set[str]:
    """The control groups of builds."""
    return {top for top, _, _ in os.walk("/sys/fs/cgroup") if "holdfast-build-" in os.path.basename(top)}


@pytest.mark.spec("N4", "N13")
async def test_steps_keep_only_the_capabilities_that_act_inside_of_the_image(
    podman: EngineService, base: str, tmp_path: Path
) -> None:
    """Docker's builder cannot drop any."""
    folder = project(tmp_path / "one", f"FROM {base}\nRUN grep CapEff /proc/self/status; exit 1\n")
    async with images(podman, tmp_path) as found:
        wrong = await failure(found.build(folder, "att_1"))
    (effective,) = [line.split()[1] for line in wrong.detail.splitlines() if line.startswith("CapEff")]
    kept = {number for number in range(64) if int(effective, 16) >> number & 1}
    assert kept == {0, 1, 3, 4, 6, 7}  # chown, dac_override, fowner, fsetid, setgid, setuid


@pytest.mark.spec("N5", "N13")
@pytest.mark.parametrize("path", ['["/etc/passwd"]', "Dockerfile.in"])
async def test_no_name_of_a_dockerfile_leads_to_files_of_the_host(
    engine: EngineService, tmp_path: Path, path: str
) -> None:
    folder = project(tmp_path / "one", "FROM scratch\n")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text('#include "/etc/passwd"\nFROM scratch\nLABEL a=b\n')
    async with images(engine, tmp_path) as found:
        wrong = await failure(found.build(folder, "att_1", dockerfile=path))
    assert wrong.code is FailureCode.BUILD, wrong
    assert "root" not in wrong.detail.lower(), wrong.detail


@pytest.mark.spec("N5", "N13")
@pytest.mark.parametrize("private", [False, True])
async def test_no_error_tells_whether_a_port_of_the_node_is_open(
    engine: EngineService, loopback: tuple[str, list[str]], tmp_path: Path, private: bool
) -> None:
    """Where the operator allows such addresses the code may differ, but the engine's own words stay on the node."""
    opened, _ = loopback
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = f"127.0.0.1:{gone.getsockname()[1]}"
    told: list[list[Failure]] = []
    for at in (opened, closed):
        async with images(engine, tmp_path, private=private) as found:
            built = project(tmp_path / at, f"FROM {at}/some/image\nLABEL a=b\n")
            told.append([await failure(found.ensure(f"{at}/some/image", "a")), await failure(found.build(built, "a"))])
    if private:
        assert {one.detail for both in told for one in both} <= set(REASONS.values())
    else:
        assert told[0] == told[1]
