"""Moved."""

from holdfast.quantities import *  # noqa: F403
