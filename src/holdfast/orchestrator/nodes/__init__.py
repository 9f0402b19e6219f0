"""Serves nodes: the gRPC service, sessions, the handshake queue, the logs that nodes deliver."""
