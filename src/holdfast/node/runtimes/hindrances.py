"""Why a machine cannot enforce a limit: a text for its operator, and a code for programs that suggest a fix."""

from enum import StrEnum


class Lack(StrEnum):
    """What the machine lacks."""

    ROOT = "root"
    """The node is not root."""
    PACKAGE = "package"
    LOOP = "loop"
    """No loop devices."""
    TUN = "tun"
    """No tunnels."""
    UNKNOWN = "unknown"


class Hindrance(str):
    """The words. Empty: there is no hindrance."""

    __slots__ = ("lack", "package")

    def __new__(cls, says: str, lack: Lack = Lack.UNKNOWN, package: str = "") -> "Hindrance":
        hindrance = super().__new__(cls, says)
        hindrance.lack = lack
        hindrance.package = package
        return hindrance

    lack: Lack
    package: str
    """The one that is not installed."""


NONE = Hindrance("")
NOT_ROOT = Hindrance("the node is not root", Lack.ROOT)


def not_installed(program: str, package: str) -> Hindrance:
    return Hindrance(f"{program} is not installed (package {package})", Lack.PACKAGE, package)
