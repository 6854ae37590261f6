"""The laboratory: what the context of a recorded conversation costs and forgets in a pipeline."""
