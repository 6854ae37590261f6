"""The command ``ctxpipe``, which ``python -m ctxpipe`` is too."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "claude-code": (
        "ctxpipe.adapters.claude_code",
        "Move long results of Claude Code to files, by a hook in its settings.",
    ),
    "mcp": ("ctxpipe.adapters.mcp_command", "Serve the tools that read back. Needs the extra mcp."),
}
"""Commands that other programs wait for: each imports only what it needs."""


def main() -> None:
    """Run the command that the process was started with."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        raise SystemExit(import_module(COMMANDS[name][0]).main(sys.argv[2:]))
    from ._cli import main as run

    run(COMMANDS)


if __name__ == "__main__":  # a worker process imports this file without being asked to run it
    main()
