"""A small model behind a real server, in an environment of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import anyio
import httpx2

FOLDER = os.environ.get("LOCAL_MODEL_FOLDER")
"""Folder of the environment with the server and the model; None if there is none."""

ROWS: list[str] = []
"""Lines of the table that `make test-local-model` prints at the end."""


class Server:
    """A running server; *url* is its address for OpenAI's SDK."""

    def __init__(self, window: int) -> None:
        assert FOLDER is not None
        [model] = Path(FOLDER).rglob("*.gguf")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        command = [f"{FOLDER}/bin/python", "-m", "llama_cpp.server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", str(window)]
        # More threads wait for each other where the machine has other work.
        command += ["--n_threads", "1", "--n_threads_batch", "1"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    async def wait(self) -> None:
        """Wait until the server answers."""
        async with httpx2.AsyncClient() as client:
            while True:
                assert self.process.poll() is None, "the server has ended"
                try:
                    await client.get(f"{self.url}/models")
                except httpx2.TransportError:
                    await anyio.sleep(0.5)
                else:
                    return

    def pause(self) -> None:
        """Stop the process; it answers nothing, as if the machine were overloaded."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue."""
        self.process.send_signal(signal.SIGCONT)
