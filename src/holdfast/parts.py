"""The name of the distribution, its optional libraries, and whether what is imported is all of one distribution.

The import name is `holdfast`; the distribution is `holdfast-compute`, because on the public index the name `holdfast`
belongs to somebody else. Both put files into the same folder if both are installed.
"""

import sys

DISTRIBUTION = "holdfast-compute"
OTHER = "holdfast"
"""A distribution of this name is not ours, or of a release before this name."""


def install_hint(extra: str) -> str:
    """How to get the libraries of an extra: by their own names, which works however Holdfast was installed."""
    return f"{sys.executable} -m pip install {' '.join(_libraries(extra))}"


def _libraries(extra: str) -> list[str]:
    import re
    from importlib import metadata

    try:
        needed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a folder of sources
        needed = []
    marked = re.compile(rf"""^([A-Za-z0-9._\[\]-]+)([^;]*);\s*extra\s*==\s*['"]{extra}['"]$""")
    found = [match for one in needed if (match := marked.match(one))]
    return [f"'{match[1]}{match[2].strip()}'" for match in found] or [f"'{DISTRIBUTION}[{extra}]'"]


def mixed_up() -> str:
    """What is wrong if the files of another distribution lie among ours; empty: nothing."""
    import holdfast

    if getattr(holdfast, "DISTRIBUTION", "") == DISTRIBUTION:
        return ""
    return (
        f"another package named {OTHER!r} is installed in {sys.prefix}, and its files have replaced some of "
        f"{DISTRIBUTION}'s. Remove both, and install {DISTRIBUTION} again: "
        f"{sys.executable} -m pip uninstall {OTHER} {DISTRIBUTION}"
    )
