"""The `holdfast` command. Reads arguments, calls the SDK, shows answers; decides nothing about jobs or nodes.

Modules of this package import at the top only what `--help` needs. Heavier modules are imported by the command that
uses them.
"""
