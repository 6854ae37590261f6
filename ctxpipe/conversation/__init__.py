"""The walk of a turn: a history becomes a context, which is remembered."""
