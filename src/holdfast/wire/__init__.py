"""What is sent between machines: the node protocol (protobuf, its limits, its conversion to the model) and the HTTP
types."""
