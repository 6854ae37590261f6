"""The laboratory: what a pipeline costs and forgets, on recordings and in trials of an agent."""
