"""The orchestrator's shell: the commit loop, gRPC for nodes, HTTP for people, logs. The kernel decides."""
