"""Holdfast runs work on machines nobody controls, and gets it finished."""

__version__ = "0.1.0"
