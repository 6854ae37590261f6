"""One small program for each mount, which runs as it is against a scripted API on 127.0.0.1."""
