"""Tests with a small real model, which `make test-local-model` installs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from local_server import FOLDER, ROWS, Server

collect_ignore_glob = [] if FOLDER else ["test_*.py"]


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[int], Server]]:
    """Return a function that starts a server with a window in tokens, or returns it again."""
    servers: dict[int, Server] = {}

    def start(window: int) -> Server:
        for other, running in servers.items():
            if other != window:
                running.pause()
        if window not in servers:
            servers[window] = Server(window)
        servers[window].resume()
        return servers[window]

    yield start
    for each in servers.values():
        each.resume()
        each.process.kill()
        each.process.wait()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    for row in ROWS:
        terminalreporter.write_line(row)
