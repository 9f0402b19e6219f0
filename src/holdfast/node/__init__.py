"""The node: runs the attempts that the orchestrator assigns to it, within limits, and reports what it holds."""
