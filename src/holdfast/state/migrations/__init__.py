"""How a database came to its present schema. Steps are history: they import nothing that may change."""
