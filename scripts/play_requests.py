"""Play recorded requests of a client through a gateway, and write what the upstream receives.

    python scripts/play_requests.py RECORDING [WINDOW]

``scripts/compare_contexts.py --requests`` runs this once for each version of ctxpipe: it imports
the version that is in PYTHONPATH. RECORDING is a JSON file with the name of a class of
`ctxpipe.testing` that plays the API, and the requests. WINDOW is a context window in tokens: with
it the gateway compacts, and writes no files. Without it the gateway moves results to files.

The body of each request to the upstream is written to a file of the folder ``sent``, in the current
folder. Two versions can be compared only if the path of that folder is the same for both, because
the bodies contain the paths of files.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from ctxpipe import testing
from ctxpipe.gateway import settings as gateway_settings
from ctxpipe.gateway.app import Gateway
from ctxpipe.testing.signatures import sign

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SERVER_WINDOW = 1_000_000  # tokens; the API refuses nothing for its length
OFFLOADING_WINDOW = 400_000  # tokens; so large that the gateway does not compact


async def play(recording: Mapping[str, Any], window: int | None, root: Path) -> list[bytes]:
    """Send the requests of *recording* through a gateway; return the bodies of the upstream.

    The gateway writes its files below *root*, or none if there is a *window* to compact in.
    """
    # Versions in which the class had another name.
    settings_class = getattr(gateway_settings, "GatewaySettings", None)
    if settings_class is None:
        settings_class = gateway_settings.Settings  # type: ignore[attr-defined]
    model = testing.Model(window=SERVER_WINDOW)
    signed_answers: list[Any] = []
    async with getattr(testing, recording["server"])(lambda _: "Yes.", model=model) as server:
        app = Gateway(
            settings_class(
                {"": server.url}, None if window else root, window=window or OFFLOADING_WINDOW
            )
        ).app
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1", timeout=60
            ) as client,
        ):
            for request in recording["requests"]:
                # Thinking is bound to the messages that were sent before it.
                new_answers = answers_in(request["body"])[len(signed_answers) :]
                signed_answers += [sign(server.requests[-1].body, new) for new in new_answers]
                await send(client, request, with_answers(request["body"], signed_answers))
    return [received.raw for received in server.requests]


async def send(client: httpx2.AsyncClient, request: Mapping[str, Any], body: Any) -> None:
    """Send *request* with *body*. Raises httpx2.HTTPStatusError if it is refused."""
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    if ["content-encoding", "zstd"] in request["headers"]:
        content = zstd.compress(content)
    headers = [tuple(header) for header in request["headers"]]
    reply = await client.request(
        request["method"], request["target"], headers=headers, content=content
    )
    reply.raise_for_status()


def answers_in(body: Any) -> list[Any]:
    """Return the content of each reply in a request to the Messages API, if it has blocks."""
    return [message["content"] for message in body.get("messages", ()) if is_answer(message)]


def with_answers(body: Any, answers: Sequence[Any]) -> Any:
    """Return *body* with *answers* as the content of its replies."""
    if not answers_in(body):
        return body
    remaining = iter(answers)
    messages = []
    for message in body["messages"]:
        if is_answer(message):
            messages.append({**message, "content": next(remaining)})
        else:
            messages.append(message)
    return {**body, "messages": messages}


def is_answer(message: Any) -> bool:
    """Return True if *message* is a reply of the model that consists of blocks."""
    return message["role"] == "assistant" and isinstance(message["content"], list)


def main() -> None:
    """Run the command."""
    logging.getLogger("ctxpipe").setLevel(logging.CRITICAL)
    path, *window = sys.argv[1:]
    recording = json.loads(Path(path).read_text("utf-8"))
    root = Path("gateway").absolute()
    bodies = asyncio.run(play(recording, int(window[0]) if window else None, root))
    shutil.rmtree(root, ignore_errors=True)  # its journals have times and random numbers
    folder = Path("sent")
    folder.mkdir()
    for number, body in enumerate(bodies):
        (folder / f"{number:03}.json").write_bytes(body)


if __name__ == "__main__":
    main()
