"""Decides when an orchestrator leads, what time it is, when it ticks, and which requests it refuses."""
