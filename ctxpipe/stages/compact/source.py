"""Gather the facts of a conversation from its raw messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...messages import Block, Message, as_blocks, inner_blocks, is_blank, texts, with_content
from ...messages.activity import commands, identifiers, one_line, put_last, touched_paths
from ...messages.identity import digest
from ...placeholders.placeholders import is_cut
from ...placeholders.summaries import is_connective, leading_count, own_words, text_of
from ..reading.conversation_facts import ConversationFacts
from ..reading.unanswered import open_tail
from ..reading.user_commands import commands_in


@dataclass(frozen=True, slots=True)
class Source:
    """The *messages* that evidence is taken from, and the *archives* of the messages before them.

    *earlier* has the facts of the conversation before *messages*. *is_raw* is True for the caller's
    own history: every text of the user in it counts as the user's, in any form. Otherwise the
    messages may have texts of ctxpipe, and a text in the form of one is not taken for the user's
    words. *redact* is applied to texts before they are cut, since it would not recognize half a
    secret.
    """

    messages: Sequence[Message]
    archives: Sequence[str] = ()
    is_raw: bool = False
    redact: Callable[[str], str] = str  # leaves the text unchanged
    earlier: ConversationFacts = ConversationFacts()

    def words_in(self, messages: Sequence[Message]) -> list[str]:
        """Return the user's words in each of *messages* that has some, oldest first.

        *messages* are some of the source's.
        """
        if not self.is_raw:
            words = [own_words(message) for message in messages]
            return [text for text in words if text]
        words = [text_of(message) for message in messages if message["role"] == "user"]
        return [text for text in words if not is_blank(text)]


def gather_facts(source: Source) -> ConversationFacts:
    """Return the facts in the messages of *source*, after those of its earlier conversation.

    Paths, commands and identifiers are redacted. One that comes again moves to the end.
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


_MAX_LINE_READ = 10_000  # characters; enough even of a command of megabytes
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
    """Return the messages that came after the compaction that *messages* begin with.

    *archived_messages* are those that this compaction archived. *as_stored* returns a message as it
    is in an archive, redacted. Everything that the compaction put into the context is left out: the
    summary, files, and archived messages that it carried over.
    """
    archived_digests = {digest(message) for message in archived_messages}
    archived_block_digests: set[bytes] = set()
    index = leading_count(messages)
    for message in messages[index:]:
        if not is_connective(message) and digest(as_stored(message)) not in archived_digests:
            # It may be a message of single blocks that were carried over. Texts never are.
            if any(texts(message)):
                break
            if not archived_block_digests:
                for old_message in archived_messages:
                    archived_block_digests.update(_block_digests(old_message))
            if not archived_block_digests.issuperset(_block_digests(as_stored(message))):
                break
        index += 1
    later_messages = list(messages[index:])
    pending_words = [
        own_words(message) for message in archived_messages[open_tail(archived_messages) :]
    ]
    pending = "\n\n".join(words for words in pending_words if words)
    if pending and later_messages and is_cut(own_words(as_stored(later_messages[0])), pending):
        del later_messages[0]
    return later_messages


def _block_digests(message: Message) -> list[bytes]:
    """Return the digest of each block of *message*, as a message of its own.

    The blocks in results have one, too: references in them may have been carried on.
    """
    content: list[Block] = []
    for block in as_blocks(message):
        content += [block, *inner_blocks(block)]
    return [digest(with_content(message, [block])) for block in content]
