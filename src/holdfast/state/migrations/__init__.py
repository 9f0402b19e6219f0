"""The migrations that lead to the present schema. They are history: they import nothing that may change."""
