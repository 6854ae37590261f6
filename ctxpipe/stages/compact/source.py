"""Gather the facts of a conversation from its raw messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...messages import (
    Block,
    Message,
    as_blocks,
    field,
    inner_blocks,
    is_blank,
    kind,
    texts,
    tool_calls,
    with_content,
)
from ...messages.activity import commands, identifiers, one_line, put_last, touched_paths
from ...messages.identity import digest
from ...placeholders.notes import is_part_of_note
from ...placeholders.placeholders import is_cut
from ...placeholders.summaries import (
    IN_PROGRESS,
    is_connective,
    leading_count,
    own_words,
    text_of,
)
from ..reading.conversation_facts import ConversationFacts
from ..reading.unanswered import open_tail
from ..reading.user_commands import commands_in
from ..reading.what_applies import is_of_user, words_of_user


@dataclass(frozen=True, slots=True)
class Source:
    """Messages from which the facts of a compaction are gathered.

    *archives* are the paths of the archives of earlier compactions, and *earlier* has the facts
    that these found. *is_raw* is True if *messages* are the caller's history: then every text of
    the user in it is taken for the user's words, and *head_count* is the number of system messages
    before them. Otherwise they are a context, in which ctxpipe has written texts too; a text that
    has the form of one of these is not taken for the user's words.
    *redact* is applied to texts before they are cut, because it would not recognize half a secret.
    """

    messages: Sequence[Message]
    archives: Sequence[str] = ()
    is_raw: bool = False
    head_count: int = 0
    redact: Callable[[str], str] = str  # leaves the text unchanged
    earlier: ConversationFacts = ConversationFacts()

    def words_in(self, messages: Sequence[Message]) -> list[str]:
        """Return the user's words in each of *messages* that has some, oldest first.

        *messages* is a part of the messages of this source.
        """
        words: list[str] = []
        for message in messages:
            if message["role"] != "user":
                continue
            text = text_of(message) if self.is_raw else own_words(message)
            if not is_blank(text) and not all(is_of_user(part) for part in texts(message)):
                text = words_of_user(message)
            if not is_blank(text):
                words.append(text)
        return words


def gather_facts(source: Source) -> ConversationFacts:
    """Return the facts in the messages of *source*, after those of its earlier conversation.

    Paths, commands and identifiers are redacted, and each is listed once, at the place where it
    occurred last. The user's requests are unchanged, and a repeated request is listed again.
    """
    messages = source.messages
    redact = source.redact
    earlier = source.earlier
    paths = dict(earlier.paths)
    for path, is_written in touched_paths(messages).items():
        visible_path = redact(path)
        put_last(paths, visible_path, is_written or earlier.paths.get(visible_path, False))
    command_lines = dict(earlier.commands)
    for command, has_failed in commands(messages):
        put_last(command_lines, _shorten_command(redact(command)), has_failed)
    new_identifiers = dict.fromkeys(identifiers(messages, redact, earlier=earlier.identifiers))
    old_identifiers = [name for name in earlier.identifiers if name not in new_identifiers]
    words = source.words_in(messages)
    return ConversationFacts(
        paths=paths,
        commands=command_lines,
        identifiers=[*old_identifiers, *new_identifiers],
        requests=[*earlier.requests, *words],
        archives=source.archives,
        redact=redact,
        orders=commands_in([*earlier.orders, *words]),
    )


_MAX_LINE_READ = 10_000  # characters of a command that are put on one line before it is cut
_MAX_LINE = 200


def _shorten_command(command: str) -> str:
    """Return *command* on one line, its end cut off if it is long."""
    line = one_line(command[:_MAX_LINE_READ])
    if len(line) <= _MAX_LINE and len(command) <= _MAX_LINE_READ:
        return line
    return f"{line[: _MAX_LINE - 2]} …"


def after_summary(
    messages: Sequence[Message],
    archived_messages: Sequence[Message],
    as_stored: Callable[[Message], Message],
) -> list[Message]:
    """Return the messages that were added after the last compaction.

    *messages* is a context that begins with the summary of that compaction, and *archived_messages*
    are the messages that it archived. Everything that the compaction itself put into the context is
    left out: the summary, restored files, and archived messages that it carried over. *as_stored*
    returns a message in the redacted form that it has in an archive.
    """
    archived_digests = {digest(message) for message in archived_messages}
    archived_blocks: _ArchivedBlocks | None = None
    index = leading_count(messages)
    for message in messages[index:]:
        if not is_connective(message) and digest(as_stored(message)) not in archived_digests:
            # Some blocks of archived messages are carried over in a message of their own.
            archived_blocks = archived_blocks or _ArchivedBlocks(archived_messages)
            if not archived_blocks.has_all_of(as_stored(message)):
                break
        index += 1
    later_messages = list(messages[index:])
    # If the user's unanswered words were too long, the compaction carried over a cut copy of them.
    pending_words = [
        own_words(message) for message in archived_messages[open_tail(archived_messages) :]
    ]
    pending = "\n\n".join(words for words in pending_words if words)
    if pending and later_messages and is_cut(own_words(as_stored(later_messages[0])), pending):
        del later_messages[0]
    return later_messages


class _ArchivedBlocks:
    """The blocks of archived messages, to recognize those that a compaction carried over."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._digests: set[bytes] = set()
        self._texts: list[str] = []
        self._calls: set[str] = set()
        for message in messages:
            self._digests.update(_block_digests(message))
            self._texts += texts(message)
            request = text_of(message)
            if message["role"] == "user" and request.startswith(IN_PROGRESS):
                # The request that was under way is carried on without its introduction.
                words = {"type": "text", "text": request.removeprefix(IN_PROGRESS)}
                self._digests.add(digest(with_content(message, [words])))
            self._calls.update(call.id for call in tool_calls([message]))

    def has_all_of(self, message: Message) -> bool:
        """Return True if all blocks of *message* are archived, whole or cut.

        A call or a result that was cut is recognized by the id of the call.
        """
        return all(self._has(message, block) for block in as_blocks(message))

    def _has(self, message: Message, block: Block) -> bool:
        if digest(with_content(message, [block])) in self._digests:
            return True
        match kind(block):
            case "tool_use":
                return str(field(block, "id")) in self._calls
            case "tool_result":
                return str(field(block, "tool_use_id")) in self._calls
            case "text":
                text = field(block, "text") or ""
                return any(
                    is_cut(text, whole) or is_part_of_note(text, whole) for whole in self._texts
                )
        return False


def _block_digests(message: Message) -> list[bytes]:
    """Return a digest for each block of *message*, and for each block inside its results.

    Each digest is that of a message with only this block. References inside results may have been
    carried over without the rest of the result.
    """
    content: list[Block] = []
    for block in as_blocks(message):
        content += [block, *inner_blocks(block)]
    return [digest(with_content(message, [block])) for block in content]
