"""Move large tool results to files, when they are new or once it pays."""
