"""What every mount does with a request, once: shape it, recover once, learn, and fail open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ..errors import safe_text
from ..messages import pending_calls
from ..messages.identity import digest
from ..refusals import Refusal
from ..session.client import is_asked_by_a_stage
from .conversations import Conversations, SessionName, check_mount, conversation_name
from .translation import Translation, is_unchanged

if TYPE_CHECKING:
    from ..messages import Message
    from ..pipeline import ContextPipeline
    from ..reports import Result
    from ..session import conversation as core
    from ..storage import JournalStorage
    from .codec import Codec, Item

__all__ = ["Conversation", "Shaped", "Shaper", "log_errors", "warn"]

logger: logging.Logger = logging.getLogger("ctxpipe")

UNSHAPED = "the context could not be shaped; the original request is sent"
NOT_SHORTENED = "the context could not be shortened; the provider's answer is passed on"
NOT_LEARNT = "the usage of a reply could not be read; the reply is passed on"
OPEN_CALLS = "a request ends with calls that have no result; it is sent as it came"


class Conversation:
    """One session, and the translation of its items."""

    def __init__(self, session: core.Conversation, codec: Codec) -> None:
        self.session = session
        self.translation: Translation = Translation(codec)
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def alone(self) -> asyncio.Lock:
        """The lock for one turn: reading, running and writing belong together."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # an asyncio lock is of one loop
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


@dataclass(frozen=True, slots=True)
class Shaped:
    """A request that was shaped: the *items* to send instead of those *given*.

    *result* is that of the session.
    """

    items: list[Item]
    given: Sequence[Item] = field(repr=False)
    result: Result = field(repr=False)
    conversation: Conversation = field(repr=False)
    arguments: Mapping[str, Any] = field(repr=False)

    @property
    def is_changed(self) -> bool:
        """Whether the request must be written anew."""
        return not is_unchanged(self.items, self.given)

    @property
    def session(self) -> core.Conversation:
        """The session of the conversation."""
        return self.conversation.session


class Shaper:
    """Shapes the requests of one mount, whose items are in the form of *codec*.

    *session_id* names the conversation, finds its name in a request, or is None: then it is taken
    from where the framework keeps it. *journal* is where sessions write down what they know.

    Raises SettingsError for invalid settings.
    """

    def __init__(
        self,
        pipeline: ContextPipeline,
        codec: Codec,
        *,
        session_id: SessionName | None = None,
        journal: JournalStorage | None = None,
    ) -> None:
        check_mount(pipeline, session_id, journal)
        self._codec = codec
        self._session_id = session_id
        self._conversations: Conversations[Conversation] = Conversations(
            pipeline, self._new_conversation, journal
        )
        self._warned: set[str] = set()

    def _new_conversation(self, session: core.Conversation) -> Conversation:
        return Conversation(session, self._codec)

    async def shape(
        self,
        items: Sequence[Item],
        *,
        request: Any = None,
        found: Sequence[object] = (),
        system: object = None,
        tools: Sequence[object] | None = None,
        model: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Shaped | None:
        """What to send instead of *items*; None where they are to be sent as they came.

        They are while a stage asks for a summary, where calls at their end still wait, and after
        an error of ours, which is logged. *request* is what a function for the name is given,
        *found* where the framework keeps that name. *system*, *tools* and *model* are those of
        the request where the items do not hold them, *options* others that `Session.run` is to know
        of.
        """
        if is_asked_by_a_stage():
            return None
        try:
            name = conversation_name(self._session_id, request, found)
            asked = {**(options or {}), "model": model}
            return await self._shape(items, name, system, tools, asked)
        except Exception as error:  # noqa: BLE001  logged by `warn`
            warn(UNSHAPED, error)
            return None

    async def _shape(
        self,
        items: Sequence[Item],
        name: str,
        system: object,
        tools: Sequence[object] | None,
        asked: Mapping[str, object],
    ) -> Shaped | None:
        beginning = self._beginning(items)
        if beginning is None:
            return None
        conversation = self._conversations.of(name, digest(beginning))
        async with conversation.alone():
            units = conversation.translation.read(items)
            if not units.messages:
                return None
            if pending_calls(units.messages):
                self._warn_once(OPEN_CALLS)
                return None
            arguments: dict[str, Any] = {
                "system": _join(system, units.system),
                "tools": tools,
                "request": asked,
            }
            result = await conversation.session.run(units.messages, **arguments)
            shaped = conversation.translation.items(units, result.messages)
        return Shaped(shaped, items, result, conversation, arguments)

    def _beginning(self, items: Sequence[Item]) -> Message | None:
        """The first message of the user, by which conversations of one name are told apart."""
        readings = map(self._codec.read, items)
        first = next((reading for reading in readings if reading.side == "user"), None)
        if first is None:
            return None
        return cast("Message", {"role": "user", "content": first.blocks})

    async def recover(self, shaped: Shaped, refusal: Refusal | None) -> Shaped | None:
        """A shorter request than *shaped*, which was refused as *refusal* says.

        None when that has another reason, when nothing can be left out, and after an error of
        ours, which is logged.
        """
        if refusal is None:
            return None
        try:
            return await self._recover(shaped, refusal)
        except Exception as error:  # noqa: BLE001  logged by `warn`
            warn(NOT_SHORTENED, error)
            return None

    async def _recover(self, shaped: Shaped, refusal: Refusal) -> Shaped | None:
        conversation = shaped.conversation
        async with conversation.alone():
            units = conversation.translation.read(shaped.given)
            result = await conversation.session.recover(
                refusal, units.messages, shaped.result, **shaped.arguments
            )
            if result is None:
                return None
            items = conversation.translation.items(units, result.messages)
        return Shaped(items, shaped.given, result, conversation, shaped.arguments)

    def observe(self, shaped: Shaped, usage: Mapping[str, int] | None) -> None:
        """Learn from the *usage* of the reply to *shaped*; an error of ours is logged."""
        if usage is None:
            return
        with log_errors(NOT_LEARNT):
            model = shaped.arguments["request"]["model"]
            shaped.session.observe(usage, shaped.result.messages, model=model)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)


def _join(system: object, head: list[dict[str, Any]]) -> object:
    """The *system* prompt of a request, and what its leading items say."""
    if not head:
        return system
    if not system:
        return head
    before = [{"type": "text", "text": system}] if isinstance(system, str) else [system]
    return [*before, *head]


# Failing open -------------------------------------------------------------------------------------


@contextmanager
def log_errors(consequence: str) -> Iterator[None]:
    """Log an error of ours, with its *consequence*, instead of raising it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  logged by `warn`
        warn(consequence, error)


def warn(consequence: str, error: Exception) -> None:
    """Log *error*, and its *consequence*, in one warning."""
    logger.warning("%s: %s", consequence, safe_text(error))
    logger.debug("the error was", exc_info=error)
