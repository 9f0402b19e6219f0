"""How answers look: tables, timelines, bars, plots. Asks nobody anything."""
