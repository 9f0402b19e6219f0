"""Functions that run as jobs: against a real network, from scripts, from a package, and as typed into a notebook."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.processes import LocalNetwork

pytestmark = [pytest.mark.xdist_group("functions"), pytest.mark.spec("J1", "J10")]

SMALL = 'cpu=0.5, memory="128MiB", disk="64MiB"'


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("functions")) as network:
        # With the settings that ship: a machine that is merely slow for a second is no reason for a second attempt.
        network.start_orchestrator(preset="lan")
        network.start_node("ant")
        network.start_node("bee")
        yield network


def run(network: LocalNetwork, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env, cwd = network.environment(), script.parent
    return subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, env=env, cwd=cwd, timeout=120
    )


def said(network: LocalNetwork, folder: Path, code: str) -> list[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code).replace("SMALL", SMALL))
    done = run(network, script)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_script_gets_the_values_of_its_functions(network: LocalNetwork, tmp_path: Path) -> None:
    # given a script with a function, a dataclass, and a module beside it
    (tmp_path / "shapes.py").write_text("def area(w, h):\n    return w * h\n")
    lines = said(
        network,
        tmp_path,
        """
        import dataclasses, os
        import holdfast
        from shapes import area

        @dataclasses.dataclass
        class Box:
            w: int
            h: int

        @holdfast.function(SMALL)
        def grown(box: Box, by: int = 1) -> Box:
            assert os.environ["HOLDFAST_JOB"]
            assert area(box.w, box.h) == 6
            return Box(box.w + by, box.h + by)

        if __name__ == "__main__":
            # when it is called over there, here, and without waiting
            print(grown.remote(Box(2, 3), by=10))
            call = grown.spawn(Box(3, 2))
            print(call.id.startswith("job_"), call.result(timeout_s=60), call.done())
            try:
                grown.spawn()
            except TypeError as wrong:
                print(wrong)
        """,
    )
    # then the values are here, and a call that makes no sense was not sent
    assert lines == ["Box(w=12, h=13)", "True Box(w=4, h=3) True", "missing a required argument: 'box'"]


def test_many_calls_come_back_in_order(network: LocalNetwork, tmp_path: Path) -> None:
    lines = said(
        network,
        tmp_path,
        """
        import holdfast

        @holdfast.function(SMALL)
        def square(x):
            return x * x

        if __name__ == "__main__":
            print(square.map(range(6)), square.map([]))
        """,
    )
    assert lines == ["[0, 1, 4, 9, 16, 25] []"]


def test_what_a_function_raises_is_raised_here_with_its_traceback(network: LocalNetwork, tmp_path: Path) -> None:
    lines = said(
        network,
        tmp_path,
        """
        import holdfast
        from holdfast.errors import FunctionRaised

        @holdfast.function(SMALL)
        def half(x):
            if x % 2:
                raise ValueError(f"{x} is odd")
            return x // 2

        if __name__ == "__main__":
            try:
                half.remote(3)
            except FunctionRaised as wrong:
                print(wrong.says)
                print("in half" in wrong.trace, "callee" in wrong.trace, wrong.job.verdict, wrong.failure.blame)
            try:
                half.map([2, 5, 8])
            except FunctionRaised as wrong:
                print(wrong.says, wrong.values)
        """,
    )
    assert lines == [
        "half raised: ValueError: 3 is odd",
        "True False failed user",
        "half raised: ValueError: 5 is odd [1, None, 4]",
    ]


def test_a_function_of_a_package_is_found_there(network: LocalNetwork, tmp_path: Path) -> None:
    package = tmp_path / "tools" / "deep"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    code = f"import holdfast\n\n@holdfast.function({SMALL})\ndef who():\n    return __name__\n"
    (package / "names.py").write_text(code)
    lines = said(network, tmp_path, "from tools.deep.names import who\nprint(who.remote(), who())\n")
    assert lines == ["tools.deep.names tools.deep.names"]


NOTEBOOK = """
import linecache, sys, types
cells = sys.argv[1]

# What IPython does with a cell: a name in angle brackets, and its lines where tracebacks look for them.
main = sys.modules["__main__"]
del main.__file__
linecache.cache["<cell-1>"] = (len(cells), None, cells.splitlines(True), "<cell-1>")
exec(compile(cells, "<cell-1>", "exec"), main.__dict__)
"""
CELL = f"""
import math
from collections import Counter
import holdfast

SCALE = {{"by": 3}}

def tripled(x):
    return x * SCALE["by"]

@holdfast.function({SMALL})
def most(words):
    found = Counter(words).most_common(1)[0]
    return found, tripled(math.floor(2.5))

print(most.remote(["a", "b", "a"]))
handle = open("/dev/null")

@holdfast.function
def refused():
    return handle.read()

try:
    refused.spawn()
except holdfast.errors.Misuse as wrong:
    print(wrong.says.partition(":")[0])
"""


def test_a_function_typed_into_a_notebook_goes_as_its_source(network: LocalNetwork, tmp_path: Path) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(NOTEBOOK)
    done = run(network, script, CELL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(('a', 2), 6)", "the function uses handle, which cannot be sent"]


CUT = """
import asyncio, os, time
import holdfast

@holdfast.function(SMALL)
def attempt():
    while os.environ["HOLDFAST_ATTEMPT"].endswith(".1"):
        time.sleep(0.1)
    return os.environ["HOLDFAST_ATTEMPT"]

async def main():
    call = attempt.spawn()
    print(call.id, flush=True)
    print(call.result(timeout_s=90))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.spec("J5")
def test_the_value_comes_although_its_machine_died_also_where_a_loop_runs(
    network: LocalNetwork, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(CUT.replace("SMALL", SMALL))
    words = [sys.executable, str(script)]
    # given a function that would never end on its first machine, called from a coroutine as in a notebook
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=network.environment(), cwd=tmp_path) as caller:
        assert caller.stdout is not None
        job = caller.stdout.readline().strip()
        # when that machine is killed
        network.node_running(job).kill_tree()
        # then the value is there, from another one
        assert caller.stdout.readline().strip().endswith(".2")
    assert caller.returncode == 0
