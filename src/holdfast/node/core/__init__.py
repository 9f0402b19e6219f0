"""What a node decides, pure: no clock, socket, file or process. Imports nothing: the shim stays small."""
