"""A local reverse proxy that shapes the requests of any client: ``ctxpipe gateway``."""
