"""Systematic mutation of the pure cores: `python -m tests.mutation` (make mutation, make mutation-changed).

Every function of the rooms in `rooms.py` is changed in every way that `operators.py` knows, one change at a time. The
tests that execute the changed lines must notice. A mutant that no test notices survives; it is listed with a reason in
`survivors/`, or the run fails. Verdicts are kept in `verdicts/` by the hash of the function, so that only what
changed is run again.
"""
