"""One small program for each adapter, which runs as it is against a scripted API on 127.0.0.1."""
