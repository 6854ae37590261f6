"""Write a summary in the background while the agent continues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..._logs import logger
from ..._threads.threads import in_thread
from ...errors import safe_text
from ...messages import Message
from ...placeholders.summaries import leading_count
from ...summarizers import Retry, Summarizer, Summary, summarize_with_retry
from ...summarizers.retry import digest_of
from ..protocol import Turn
from ..reading.unanswered import open_tail
from .split_context import SplitContext

BACKGROUND_SHARE = 0.85
"""Share of the budget's trigger at which a summary is started in the background.

With a larger share, a slow model would not be ready in time. With a smaller one, each summary would
cover less, and more of them would have to be paid for.
"""


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """A summary of the first *count* messages of a history, which is being written.

    *digest* is that of these messages. *task* writes the summary; its result is None if it failed.
    The memory of a session holds this object, and cancels the task when the session ends.
    """

    count: int
    digest: bytes = field(repr=False)
    task: asyncio.Task[Summary | None] = field(repr=False)

    @classmethod
    async def begin(
        cls, turn: Turn, context: SplitContext, writer: Summarizer, retry: Retry
    ) -> None:
        """Start *writer* on the messages of *context* that the model has answered.

        Does nothing if none of them can leave.
        """
        history = turn.history or ()
        count, place = answer_boundary(turn, context)
        if place:
            digest = await in_thread(digest_of, history[:count])
            task = asyncio.create_task(_write(writer, context.rest[:place], retry))
            turn.memory[cls] = cls(count, digest, task)

    def place(self, turn: Turn, context: SplitContext) -> int:
        """Return the index in the rest of *context* of the first message that the summary leaves.

        It is 0 if nothing could leave.
        """
        return place_after(turn, context, self.count)

    async def summary(self, turn: Turn) -> Summary | None:
        """Wait for the summary and return it.

        Returns None if it failed, or if it summarizes another history than that of *turn*.
        """
        summarized = (turn.history or ())[: self.count]
        if await in_thread(digest_of, summarized) != self.digest:
            return None
        await self.wait()
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return None
        return self.task.result()

    async def wait(self) -> None:
        """Wait until the task has ended; do nothing if it belongs to another event loop.

        The task continues if this call is cancelled.
        """
        if not self.task.done() and self.task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self.task])

    def cancel(self) -> None:
        """Cancel the task, from any thread."""
        with suppress(RuntimeError):  # its event loop is closed
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)


def answer_boundary(turn: Turn, context: SplitContext) -> tuple[int, int]:
    """Return the number of answered messages of the history, and where the rest begins.

    The second value is an index into the rest of *context*. It is 0 if nothing before it could be
    removed, and without a history.
    """
    count = open_tail(turn.history or ())
    return count, place_after(turn, context, count) if count else 0


def place_after(turn: Turn, context: SplitContext, count: int) -> int:
    """Return the index in the rest of *context* after the first *count* messages of the history.

    Returns 0 if nothing before that could leave, or if the model has not answered all of it.
    """
    if turn.tracked is None:
        return 0
    head_count = len(context.head)
    last = turn.tracked.place_of(count - 1) - head_count
    place = turn.tracked.place_of(count) - head_count
    return place if leading_count(context.rest) <= last and place <= context.tail else 0


async def _write(writer: Summarizer, messages: Sequence[Message], retry: Retry) -> Summary | None:
    """Return the summary of *messages*, or None if no attempt succeeds.

    The failure is logged as an error.
    """
    try:
        return await summarize_with_retry(writer, messages, retry)
    except Exception as error:  # noqa: BLE001  the result may never be read
        # No traceback: it may quote anything.
        logger.error("a summary in the background failed: %s", safe_text(error))  # noqa: TRY400
        return None
