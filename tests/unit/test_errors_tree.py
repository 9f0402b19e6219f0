"""The trees of errors that people read are the classes that are raised."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import holdfast.client
from holdfast import errors
from holdfast.blobs import errors as blob_errors
from holdfast.errors import HoldfastError

pytestmark = pytest.mark.spec("J7")

CAUGHT = {"TooLong", "NotAValue", "_TooMany"}
"""Never leave the SDK: they are turned into one of the tree where they are caught."""


def drawn(text: str, root: str) -> dict[str, str]:
    """Child -> parent, as a docstring draws them."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = [(-1, root)]
    for line in text.splitlines():
        branch = re.match(r"^([\s│]*)[├└]── (\w+)", line)
        if branch is None:
            continue
        depth = len(branch[1])
        while above[-1][0] >= depth:
            above.pop()
        found[branch[2]] = above[-1][1]
        above.append((depth, branch[2]))
    return found


def real(module: object, root: type) -> dict[str, str]:
    classes = [one for _, one in inspect.getmembers(module, inspect.isclass) if issubclass(one, root)]
    ours = [one for one in classes if one is not root and one.__module__ == getattr(module, "__name__", "")]
    return {one.__name__: one.__bases__[0].__name__ for one in ours}


def test_the_tree_in_the_manual_of_errors_is_the_tree_of_classes() -> None:
    assert drawn(errors.__doc__ or "", "HoldfastError") == {
        **real(errors, HoldfastError),
        # drawn there as one branch, and in full where it is defined
        "BlobError": "HoldfastError",
    }
    page = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
    assert drawn(page, "HoldfastError") == drawn(errors.__doc__ or "", "HoldfastError")
    assert drawn(blob_errors.__doc__ or "", "BlobError") == real(blob_errors, blob_errors.BlobError)


def test_every_error_of_the_sdk_is_one_of_these_and_has_a_code() -> None:
    # whatever a module of the SDK names as an exception of ours derives from the one root
    for found in pkgutil.iter_modules(holdfast.client.__path__, "holdfast.client."):
        module = importlib.import_module(found.name)
        for name, one in inspect.getmembers(module, inspect.isclass):
            if issubclass(one, Exception) and one.__module__.startswith("holdfast.") and name not in CAUGHT:
                assert issubclass(one, HoldfastError), f"{module.__name__}.{name}"
                assert one.code, name


def test_an_error_says_what_and_what_to_do() -> None:
    error = errors.NotFound("there is no job 'x'", hint="`holdfast jobs` lists them.")
    assert (error.says, error.hint, error.code) == ("there is no job 'x'", "`holdfast jobs` lists them.", "not_found")
    assert str(error) == "there is no job 'x' [not_found]\n  `holdfast jobs` lists them."
