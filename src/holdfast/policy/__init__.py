"""Pure formulas used by more than one decider. They hold no state and know no rows."""
