"""A run goes on to its end when a worker dies under a test, and says at once under which.

pytest-xdist's own scheduler hands all that the dead worker ever had to the others, done or not. A worker that is given
only what is done has nothing to report, is given nothing more, and the run stands still for ever; so does the dead
one's successor when it is given a single test, since a worker begins a test only when it knows the next. And the deadly
test would be run again, under the next worker.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Scheduling(LoadGroupScheduling):
    """Gives the others what a dead worker had not begun, and its successor more than one test to begin with."""

    def remove_node(self, node: WorkerController) -> str | None:
        units = self.assigned_work[node]
        died_under = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        for unit in units.values():
            if died_under in unit:
                unit[died_under] = True
        self.assigned_work[node] = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        super().remove_node(node)
        return died_under

    def schedule(self) -> None:
        again = self.collection is not None
        super().schedule()
        for node in self.nodes if again else ():
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """At once: a run that is cut short does not reach its summary."""
    print(f"\na worker died under {crashitem}", flush=True)
