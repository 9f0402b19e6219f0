"""Bounds what callers can take before they are known: connections, headers, time and bodies."""
