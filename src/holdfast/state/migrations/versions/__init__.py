"""One file per migration, named after its number."""
