"""ctxpipe beside its peers: the same conversations, the same fake model, the same judge."""
