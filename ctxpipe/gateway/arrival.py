"""The time limit for the body of a request, whose arrival may stop at any byte."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .guard import Refused


class BodyTimeLimit:
    """ASGI middleware that refuses a request whose body stops arriving for *seconds*.

    The limit is for each part of a body, so that a large body on a slow connection may take any
    time. Without a limit, a client could keep connections open with bodies that never end.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request in *scope*; its `receive` raises Refused once the time is over."""
        if scope["type"] != "http":  # the start and the end of the gateway
            await self._app(scope, receive, send)
            return
        is_complete = False

        async def receive_in_time() -> Message:
            """Return the next part of the body, or report later that the client has left."""
            nonlocal is_complete
            if is_complete:
                return await receive()
            try:
                # Not anyio's, which takes several times as long; a large body has many parts.
                async with asyncio.timeout(self._seconds):
                    message = await receive()
            except TimeoutError as error:
                raise Refused(
                    408, f"nothing of the body has arrived for {self._seconds:g} seconds"
                ) from error
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)
