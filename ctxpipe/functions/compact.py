"""Replace a long history by its summary."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import cast

import anyio
from anyio import to_thread

from .._logs import logger
from .._text import short_repr
from ..errors import StorageError, SummaryFailed, safe_text
from ..messages import Message, MessageLike, ensure_messages, split_system
from ..placeholders.summaries import assemble, reminder, safe_summary
from ..settings import COMPACT_MAX_RETRIES, COMPACT_OUTPUT_DIR, SUMMARY_MAX_WORDS
from ..stages.archive import save_raw
from ..stages.compact.layout import fold_texts
from ..stages.compact.restore import RestoredFiles
from ..stages.reading.user_commands import extract_commands
from ..storage import Archive, LocalStorage
from ..storage.files import FileReader
from ..summarizers import AnthropicSummarizer, Retry, Summarizer, summarize_with_retry
from ..tokens import Counting, TokenCounter, as_counter, should_compact
from .restore import restore_files


@dataclass(frozen=True, slots=True)
class CompactStats:
    """Statistics of a compaction. Tokens are raw and of the messages alone."""

    original_token_count: int
    compacted_token_count: int
    compaction_ratio: float
    compacted_message_count: int
    retained_message_count: int
    restored_file_count: int
    restored_token_count: int


@dataclass(frozen=True, slots=True, repr=False)
class CompactResult:
    """The result of `compact_messages`.

    If the history was not compacted, *messages* is the very same list and *reason* says why.
    """

    messages: list[Message] = field(repr=False)
    compacted: bool = False
    stats: CompactStats | None = None
    original_messages_path: str | None = None
    reason: str = ""

    __repr__ = short_repr


async def compact_messages(
    messages: Sequence[MessageLike],
    *,
    summarize: Summarizer | None = None,
    model: str | None = None,
    session_id: str = "default",
    output_dir: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    context_token_limit: int | None = None,
    compact_threshold_ratio: float | Decimal | None = None,
    max_retries: int | None = None,
    summary_max_words: int | None = None,
    max_restore_files: int | None = None,
    max_restore_tokens_per_file: int | None = None,
    max_restore_tokens_total: int | None = None,
    require_archive: bool = False,
    fold_unrestored: bool = False,
    counter: Counting | None = None,
    system: object = None,
    tools: Sequence[object] | None = None,
    files: FileReader | None = None,
    archive: Archive | None = None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> CompactResult:
    """Replace the history by a summary if the context has reached its threshold.

    All messages but the leading system messages are replaced. The files that the agent read last
    are read again from disk and follow the summary. The threshold is *context_token_limit* x
    *compact_threshold_ratio* (200,000 x 0.92 raw tokens, including *system* and *tools*).
    *messages* is not modified. The result has the very same list and a *reason* in each of these
    cases: the context is below the threshold; no summary was written within *max_retries* (2)
    retries; or the result would not be smaller.

    The raw messages are first saved to ``<output_dir>/<session_id>/compact-<UTC seconds>-<n>.json``
    (*output_dir* is ``.compact`` by default). `load_archive` reads them back. A failed save is
    logged; it stops the compaction only if *require_archive* is True.

    *summarize* writes the summary. The default is `AnthropicSummarizer` with *model* and
    *summary_max_words*: it sends the messages to Anthropic with the credentials for it in the
    environment, also if the agent itself uses another provider. Without credentials,
    `ExtractiveSummarizer` is used. *work_dir* and the *max_restore_…* limits are those of
    `restore_files`. If *fold_unrestored* is True, files that are too long are reduced to the names
    that they define. *files* reads files in place of the disk, *archive* stores the raw messages in
    place of *output_dir*, and *sleep* replaces the waiting between retries in tests.

    This function trusts *messages*, as `restore_files` does: files come back also after calls that
    were denied, and a message in the form of a summary or of a restored file is taken for one. The
    stage `Compact` trusts none of this.

    Raises InvalidHistory if *messages* is not a valid message list, SettingsError if a setting is
    invalid.
    """
    ensure_messages(messages)
    messages = cast("list[Message]", messages)
    counter = as_counter(counter)
    retry = Retry(max_retries=COMPACT_MAX_RETRIES(max_retries), sleep=sleep)
    if summarize is None:
        max_words = SUMMARY_MAX_WORDS(summary_max_words)
        summarize = AnthropicSummarizer(model=model, max_words=max_words, counter=counter)
    # Counted in a worker thread now; below, the counter only looks every text up.
    await counter.count(messages, system=system, tools=tools)
    is_long = should_compact(
        messages,
        context_token_limit=context_token_limit,
        compact_threshold_ratio=compact_threshold_ratio,
        counter=counter,
        system=system,
        tools=tools,
    )
    _, rest = split_system(messages)
    if not rest:
        return CompactResult(messages, reason="nothing but system messages")
    if not is_long:
        return CompactResult(messages, reason="below the threshold")
    if archive is None:
        folder = output_dir or COMPACT_OUTPUT_DIR()
        archive = await to_thread.run_sync(
            partial(LocalStorage, folder, on_conflict="number", must_be_writable=False)
        )
    path = None
    try:
        path = await save_raw(archive, session_id, "compact", rest, required=require_archive)
        summary = await summarize_with_retry(summarize, rest, retry)
    except (SummaryFailed, StorageError) as error:
        # No traceback: it may quote anything.
        logger.error("the history is not compacted: %s", safe_text(error))  # noqa: TRY400
        return CompactResult(messages, original_messages_path=path, reason=str(error))
    restored_files = await restore_files(
        messages,
        work_dir=work_dir,
        max_restore_files=max_restore_files,
        max_restore_tokens_per_file=max_restore_tokens_per_file,
        max_restore_tokens_total=max_restore_tokens_total,
        files=files,
        counter=counter,
    )
    folded_texts: Mapping[str, str] = {}
    if fold_unrestored:
        folded_texts = await fold_texts(restored_files.unfit, counter)
    commands = reminder(extract_commands(rest))
    text = "\n\n".join([safe_summary(summary.text) + commands, *folded_texts.values()])
    result = await _largest_smaller_result(messages, text, restored_files, counter)
    return replace(result, original_messages_path=path)


async def _largest_smaller_result(
    original: list[Message], text: str, restored_files: RestoredFiles, counter: TokenCounter
) -> CompactResult:
    """Return the result with as many restored files as possible that is smaller than *original*."""
    head, rest = split_system(original)
    before = await counter.count(original)
    for number in range(len(restored_files.files), -1, -1):
        files = restored_files.files[:number]
        messages = assemble(head, text, [file.message for file in files])
        after = await counter.count(messages)
        if after < before:
            stats = CompactStats(
                original_token_count=before,
                compacted_token_count=after,
                compaction_ratio=after / before,
                compacted_message_count=len(rest),
                retained_message_count=len(head),
                restored_file_count=number,
                restored_token_count=sum(file.tokens for file in files),
            )
            return CompactResult(messages, True, stats)
    reason = f"the compacted messages would not be smaller than {before:,} tokens"
    logger.warning("%s", reason)
    return CompactResult(original, reason=reason)
