"""Follows work on the screen until it ends or the person leaves."""
