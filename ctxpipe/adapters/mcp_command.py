"""The command ``ctxpipe mcp``: its options, which need no ``mcp`` package."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import anyio

from ..errors import CtxpipeError
from ..storage.local import LocalStorage


def main(arguments: Sequence[str]) -> int:
    """Serve the tools that read what was offloaded, until the client closes standard input.

    Needs the extra mcp.
    """
    parser = argparse.ArgumentParser(prog="ctxpipe mcp", description=main.__doc__)
    parser.add_argument(
        "root",
        nargs="?",
        default=".ctxpipe",
        help="the folder of a LocalStorage; default: %(default)s",
    )
    parser.add_argument("--session", help="the one session that may be read; default: all")
    given = parser.parse_args(arguments)
    if os.path.isfile(given.root):
        parser.error(f"{given.root} is a file; give the folder of a LocalStorage")
    try:
        from .mcp import offload_server, serve

        server = offload_server(LocalStorage(os.path.abspath(given.root)), session_id=given.session)
    except CtxpipeError as error:
        parser.error(str(error))
    anyio.run(serve, server)
    return 0
