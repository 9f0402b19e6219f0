"""The decisions of a node. Pure: no clock, socket, file or process. Imports nothing, so that the shim stays small."""
