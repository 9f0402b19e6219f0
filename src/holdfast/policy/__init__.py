"""Pure formulas that several deciders share. They hold no state and know no rows."""
