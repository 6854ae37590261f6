"""Other people's loops and clients, run through a pipeline in one line."""
