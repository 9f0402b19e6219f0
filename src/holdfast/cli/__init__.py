"""The `holdfast` command. Reads arguments, asks the SDK, shows answers; decides nothing about jobs or nodes.

Modules of this room import at their top only what `--help` needs; everything heavier is imported by the
command that uses it.
"""
