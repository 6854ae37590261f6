"""A summary that is written in the background, while the agent goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .._logs import logger
from .._threads.threads import in_thread
from ..edits.compact import open_tail
from ..errors import safe_text
from ..messages import Message, split_system
from ..placeholders.summaries import leading_count
from ..summarizers import Retry, Summarizer, Summary, summarize_with_retry
from ..summarizers.retry import digest_of
from .protocol import Turn

BEGINS_AT = 0.85
"""At this share of the budget's trigger a summary is begun in the background.

Later, a slow model is not ready in time; earlier, each summary covers less, and more are paid for.
"""


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """The summary of the first *count* messages of a history, which have this *digest*.

    *task* writes it; its result is None where that failed. It is kept in the memory of a session,
    which cancels it when it ends.
    """

    count: int
    digest: bytes = field(repr=False)
    task: asyncio.Task[Summary | None] = field(repr=False)

    @classmethod
    async def begin(cls, turn: Turn, writer: Summarizer, retry: Retry) -> None:
        """Have *writer* begin with what the model has answered in *turn*, if that can leave."""
        history = turn.history or ()
        count, place = answer_boundary(turn)
        if place:
            digest = await in_thread(digest_of, history[:count])
            _, rest = split_system(turn.messages)
            task = asyncio.create_task(_write(writer, rest[:place], retry))
            turn.memory[cls] = cls(count, digest, task)

    def place(self, turn: Turn) -> int:
        """Where what it leaves begins in *turn*, after the head; 0 where nothing could leave."""
        return place_after(turn, self.count)

    async def summary(self, turn: Turn) -> Summary | None:
        """The summary, once it is written; None where it failed, or is of another history."""
        known = (turn.history or ())[: self.count]
        if await in_thread(digest_of, known) != self.digest:
            return None
        await self.wait()
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return None
        return self.task.result()

    async def wait(self) -> None:
        """Wait until it has ended, unless another event loop has it.

        Where this is cancelled it goes on.
        """
        if not self.task.done() and self.task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self.task])

    def cancel(self) -> None:
        """Cancel it, from any thread."""
        with suppress(RuntimeError):  # its event loop is closed
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)


def answer_boundary(turn: Turn) -> tuple[int, int]:
    """Return how many messages of the history the model has answered, and where the rest begins.

    The second value is an index into the messages of *turn* after the head. It is 0 if nothing
    before it could be removed, and without a history.
    """
    count = open_tail(turn.history or ())
    return count, place_after(turn, count) if count else 0


def place_after(turn: Turn, count: int) -> int:
    """Where what follows the first *count* messages of the history begins, after the head.

    0 where nothing before it could leave, and where the model has not answered all of that.
    """
    head, rest = split_system(turn.messages)
    if turn.tracked is None:
        return 0
    last, place = (turn.tracked.place_of(index) - len(head) for index in (count - 1, count))
    return place if leading_count(rest) <= last and place <= open_tail(rest) else 0


async def _write(writer: Summarizer, messages: Sequence[Message], retry: Retry) -> Summary | None:
    try:
        return await summarize_with_retry(writer, messages, retry)
    except Exception as error:  # noqa: BLE001  nobody may ever ask for the result
        # No traceback: it may quote anything.
        logger.error("a summary in the background failed: %s", safe_text(error))  # noqa: TRY400
        return None
