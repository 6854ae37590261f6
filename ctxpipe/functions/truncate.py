"""Shorten a history without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import cast

from ..messages import Message, MessageLike, ensure_messages
from ..messages.vocabulary import head_length
from ..providers.agent_tools import READING_TOOLS, ReadingTools
from ..settings import TEXT, one_of
from ..stages.file_folding import FOLDER, FileFolder
from ..stages.reading.groups import groups, has_compaction
from ..stages.truncate.selection import MIDDLE_END, MIDDLE_START, Window
from ..stages.truncate.shortening import ShorteningTask, Truncation, shorten
from ..stages.truncate.stage import MAX_TOKENS, SmartTruncate
from ..tokens import Counting, as_counter


async def smart_truncate(
    messages: Sequence[MessageLike],
    *,
    max_tokens: int = MAX_TOKENS,
    middle_start: Fraction | float = MIDDLE_START,
    middle_end: Fraction | float = MIDDLE_END,
    window: Window = "average",
    reading_tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    system: object = None,
    tools: Iterable[object] | None = None,
    folder: FileFolder | None = None,
    marker: str = "",
    counter: Counting | None = None,
) -> Truncation:
    """Shorten the middle of *messages* without a model.

    The middle are the messages that lie wholly between *middle_start* and *middle_end* of all
    tokens. There are two steps. The first is taken whatever the length of the history: tool calls
    in the middle are removed with their results, except file views (calls that read a file); and
    file views in the whole history, also outside the middle, are folded to the names that the file
    defines.

    The second step is taken if more than *max_tokens* raw tokens are left, including *system* and
    *tools*. It deletes one run of neighboring messages around the center of the middle, once:
    ceil(excess / average) messages, where the excess is the tokens above *max_tokens* and the
    average is that of the messages in the middle. With ``window="covering"`` it deletes at least
    that many, and enough to cover the excess. *marker* is appended to the user's text before the
    run.

    The system messages at the beginning, the first request, the last turn and messages with a
    user's ``<command>`` are never deleted; only file views in them may be folded. Returns the very
    same list if there is nothing to do.

    Raises InvalidHistory if *messages* is not a valid message list, SettingsError if a setting is
    invalid.
    """
    ensure_messages(messages)
    messages = cast("list[Message]", messages)
    # The stage checks the settings.
    stage = SmartTruncate(None, max_tokens, middle_start, middle_end, reading_tools, shell)
    one_of("average", "covering").check("window", window)
    TEXT.check("marker", marker)
    FOLDER.optional.check("folder", folder)
    counter = as_counter(counter)
    sums = [0, *accumulate(await counter.counts(messages))]
    overhead = await counter.count([], system=system, tools=tools)
    task = ShorteningTask(messages, sums, counter, overhead, max_tokens, window, folder, marker)
    return await shorten(stage.rules, task)


def truncate_conversation(
    messages: Sequence[MessageLike], fraction: float | Fraction
) -> list[Message]:
    """Return *messages* without the oldest ones after the first request.

    *fraction* (0 to 1) is the share of the messages after the first request to remove; the number
    is rounded down to an even one. The system messages at the beginning, the first request and
    everything from a server's summary on stay. If the cut would separate a call from its result,
    fewer messages are removed. Returns the very same list if none is removed.
    """
    messages = cast("list[Message]", messages)
    first = head_length(messages) + 1
    to_remove = int((len(messages) - first) * Fraction(str(fraction)))
    to_remove = max(0, to_remove // 2 * 2)
    # The server reads its summary and everything after it.
    limit = first + to_remove
    for index in range(first, len(messages)):
        if has_compaction(messages[index]):
            limit = min(limit, index)
            break
    stops = [span.stop for span in groups(messages) if span.stop <= limit]
    stop = max([first, *stops])
    if stop == first:
        return messages
    return [*messages[:first], *messages[stop:]]
