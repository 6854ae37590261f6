"""The command ``ctxpipe mcp``. Its options can be read without the ``mcp`` package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import anyio

from ..errors import CtxpipeError
from ..storage.local import LocalStorage


def main(arguments: Sequence[str]) -> int:
    """Serve the tools that read offloaded content until the client closes standard input.

    Needs the extra mcp.
    """
    parser = argparse.ArgumentParser(prog="ctxpipe mcp", description=main.__doc__)
    parser.add_argument(
        "root",
        nargs="?",
        default=".ctxpipe",
        help="the folder of a LocalStorage; default: %(default)s",
    )
    parser.add_argument("--session", help="the only session that may be read; default: all")
    options = parser.parse_args(arguments)
    try:
        from .mcp import offload_server, serve

        server = offload_server(
            LocalStorage(os.path.abspath(options.root)), session_id=options.session
        )
    except CtxpipeError as error:
        parser.error(str(error))
    if not os.path.isdir(options.root):
        print(
            f"ctxpipe mcp: there is no folder {os.path.abspath(options.root)} yet; "
            "the tools find nothing until ctxpipe writes to it",
            file=sys.stderr,
        )
    anyio.run(serve, server)
    return 0
