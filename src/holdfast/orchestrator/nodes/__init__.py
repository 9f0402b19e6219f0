"""What serves nodes: the gRPC service, sessions, the queue of handshakes, the logs that nodes deliver."""
