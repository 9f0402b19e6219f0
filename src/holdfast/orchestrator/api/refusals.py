"""Turns refusals into errors: those of the kernel, and those in a list of answers."""

from typing import TypeVar

from holdfast import codes
from holdfast.kernel.decision import Rejected
from holdfast.orchestrator.api.views import failure_view
from holdfast.orchestrator.api_error import ApiError
from holdfast.wire.errors import ErrorView

T = TypeVar("T")


def refusal(view: ErrorView) -> ApiError:
    return ApiError(view.code, view.says, view.hint, view.failure)


def rejection(rejected: Rejected) -> ApiError:
    """The error for a rejection by the kernel."""
    return ApiError(rejected.code, rejected.says, codes.what_to_do(rejected.code), failure_view(rejected.failure))


def decided(answer: T | Rejected) -> T:
    """The kernel's answer. Raises ApiError if it is a rejection."""
    if isinstance(answer, Rejected):
        raise rejection(answer)
    return answer
