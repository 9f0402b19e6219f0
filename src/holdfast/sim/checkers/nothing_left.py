"""SPEC N9: once all faults are healed and all jobs have ended, no body, shim or folder is left on any machine."""

from holdfast.sim.watch import Rule


class NothingLeft(Rule):
    def finished(self) -> None:
        for machine in self.scene.machines.values():
            if machine.shims or machine.folders:
                left = sorted({*machine.shims, *machine.folders})
                self.fail(f"{machine.spec.id} still holds {', '.join(left)}; shims alive: {sorted(machine.shims)}")
