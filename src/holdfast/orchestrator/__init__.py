"""The orchestrator's shell around the kernel: the commit loop, gRPC for nodes, HTTP for people, logs."""
