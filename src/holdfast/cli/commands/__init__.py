"""The commands, one module each. A command reads its arguments, asks the SDK and shows the answer."""
