"""``python -m ctxpipe`` is the command ``ctxpipe``."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":  # a worker process imports this file without being asked to run it
    main()
