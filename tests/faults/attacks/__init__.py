"""Generators of attacks on the listeners of an orchestrator, one program each:
`python -m attacks.NAME HOST PORT SECONDS CONNECTIONS`. Each keeps so many connections open, replaces those that are
closed, and ends by itself.
"""
