"""Renders answers: tables, timelines, bars, plots. Sends no requests."""
