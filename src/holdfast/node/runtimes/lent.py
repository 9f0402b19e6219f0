"""What a body may import of Holdfast: `holdfast.checkpoint`, and nothing else. Installed once for each attempt.

The node's own packages are hidden from jobs, and a job's Python may differ from the node's. So the one file that needs
only the standard library is put into a folder of its own, which the body sees read-only.
"""

import os
import pkgutil

from holdfast.passing import exists

SEEN_AS = "/holdfast"
_NAME = "lent"
_PACKAGE = '''"""What a job may use of Holdfast. Where the job brings a Holdfast of its own, that is found as well."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
'''


def lay_out(folder: str) -> None:
    """Install it in an attempt's folder. Idempotent."""
    target = place(folder)
    if exists(target):
        return
    source = pkgutil.get_data("holdfast", "checkpoint.py")
    if source is None:
        raise FileNotFoundError(2, "this installation has no holdfast/checkpoint.py")
    draft = target + ".new"
    package = os.path.join(draft, "holdfast")
    os.makedirs(package, exist_ok=True)
    for path in (draft, package):
        os.chmod(path, 0o755)  # regardless of the umask: the body is another user
    for name, data in (("__init__.py", _PACKAGE.encode()), ("checkpoint.py", source)):
        with open(os.path.join(package, name), "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
    os.rename(draft, target)


def place(folder: str) -> str:
    return os.path.join(folder, _NAME)


def python_path(theirs: str, seen_as: str = SEEN_AS) -> str:
    """The body's PYTHONPATH: the job's own entries come first."""
    return f"{theirs}:{seen_as}" if theirs else seen_as
