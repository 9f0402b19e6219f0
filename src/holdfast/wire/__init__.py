"""What is said: the node protocol (protobuf, its limits, its conversion to the model) and the HTTP types."""
