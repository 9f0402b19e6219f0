"""The commands, one module each. A command reads its arguments, calls the SDK and shows the answer."""
