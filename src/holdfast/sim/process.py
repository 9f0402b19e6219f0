"""The base of all simulated processes: they can be killed at any moment, and they can freeze."""

from collections.abc import Callable
from typing import Any

from holdfast.sim.world import SimWorld, Timer


class SimProcess:
    """Everything it does goes through `run` or `later`: a dead process does nothing, a frozen one continues on thaw."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.frozen = False
        self._life = 0
        self._missed: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def later(self, delay_ms: int, what: Callable[..., None], *arguments: Any) -> Timer:
        return self.world.call_at(self.world.now + delay_ms, self._enter, self._life, what, arguments)

    def run(self, what: Callable[..., None], *arguments: Any) -> None:
        if self.frozen:
            self._missed.append((what, arguments))
        else:
            what(*arguments)

    def forget_everything(self) -> None:
        """Cancel everything that was scheduled: the process ended."""
        self._life += 1
        self._missed.clear()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Run everything that accumulated, in order of arrival, unless one of these calls ends the process."""
        self.frozen = False
        missed, self._missed = self._missed, []
        life = self._life
        for what, arguments in missed:
            if self._life != life:
                return
            self.run(what, *arguments)

    def _enter(self, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life != self._life:
            return
        if self.frozen:
            self._missed.append((what, arguments))
        else:
            what(*arguments)
