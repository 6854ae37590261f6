"""Which session a request belongs to: the name of its conversation, and its first message."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ..errors import SettingsError
from ..names import hashed_name
from ..pipeline import ContextPipeline
from ..session.session import conversation_of
from ..settings import CALLABLE, MAX_SESSION_ID, SESSION_ID, excerpt, instance_of
from ..storage.protocol import JOURNAL_STORAGE

if TYPE_CHECKING:
    from ..session.conversation import Conversation
    from ..storage import JournalStorage

__all__ = [
    "Conversations",
    "SessionName",
    "check_mount",
    "conversation",
    "conversation_name",
    "texts_at",
]

logger: logging.Logger = logging.getLogger("ctxpipe")

MAX_OTHERS = 8  # conversations under one name, besides the first
UNNAMED = "unnamed"
_PIPELINE = instance_of(ContextPipeline, "a ContextPipeline such as ContextPipeline(stages)")

T = TypeVar("T")

SessionName: TypeAlias = str | Callable[[Any], str | None]
"""The name of the conversation, or a function that finds it in a request; None: it has none."""

_named: ContextVar[str | None] = ContextVar("ctxpipe_conversation", default=None)


@contextmanager
def conversation(name: str) -> Iterator[None]:
    """Meanwhile requests belong to the conversation *name*, whatever is found in them.

    For code that calls a client deep inside somebody else's: ``with conversation("job-42"):``. A
    mount that was given a ``session_id`` keeps to that. Raises SettingsError for an invalid name.
    """
    SESSION_ID.check("name", name)
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def check_mount(pipeline: object, session_id: object, journal: object) -> None:
    """Raise SettingsError unless these can be the settings of a mount."""
    _PIPELINE.check("pipeline", pipeline)
    if not (session_id is None or SESSION_ID.accepts(session_id) or CALLABLE.accepts(session_id)):
        raise SettingsError(
            f"session_id is {excerpt(session_id)};"
            " give a name, a function that finds it in a request, or None"
        )
    JOURNAL_STORAGE.optional.check("journal", journal)


def conversation_name(
    session_id: SessionName | None, request: Any, found: Iterable[object] = ()
) -> str:
    """The name of the conversation that *request* belongs to.

    That is what *session_id* says; else that of `conversation`; else the first text of *found*,
    which is where a framework keeps it; else "unnamed".
    """
    given = session_id(request) if callable(session_id) else session_id
    for name in (given, _named.get(), *found):
        if isinstance(name, str) and name:
            fits = len(name) <= MAX_SESSION_ID
            return name if fits else hashed_name(name, MAX_SESSION_ID)
    return UNNAMED


@dataclass(slots=True)
class _Name(Generic[T]):
    """The conversations of one name: the *first* has the name's session, others siblings."""

    first: bytes
    session: Conversation
    conversation: T
    others: OrderedDict[bytes, T] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class Conversations(Generic[T]):
    """What a mount remembers of each conversation; *make* makes it of a session's.

    Conversations of the same name are distinguished by how they begin, so that side questions and
    sub-agents do not disturb each other. *journal* follows the one that came first. At most
    ``max_sessions`` of the pipeline are remembered.
    """

    pipeline: ContextPipeline
    make: Callable[[Conversation], T]
    journal: JournalStorage | None = None
    _names: OrderedDict[str, _Name[T]] = field(default_factory=OrderedDict)

    def of(self, name: str, beginning: bytes) -> T:
        """The conversation *name* that has this *beginning*, a digest of its first message.

        Raises SettingsError for an invalid name.
        """
        known = self._names.pop(name, None)
        if known is None:
            if name == UNNAMED:
                logger.warning(
                    'a request names no conversation; all such requests share the session "%s" and '
                    "its folder: give the mount session_id=, or call its client inside "
                    "ctxpipe.wire.conversation(name)",
                    UNNAMED,
                )
            session = conversation_of(self.pipeline.session(name, journal=self.journal))
            known = _Name(beginning, session, self.make(session))
        _keep(self._names, name, known, self.pipeline.max_sessions)
        if beginning == known.first:
            return known.conversation
        other = known.others.pop(beginning, None)
        if other is None:
            other = self.make(known.session.sibling())
        _keep(known.others, beginning, other, MAX_OTHERS)
        return other


def _keep(newest: OrderedDict[Any, Any], key: object, value: object, most: int) -> None:
    """Put *value* last, and drop the first of more than *most*."""
    newest[key] = value
    if len(newest) > most:
        newest.popitem(last=False)


def texts_at(holder: Mapping[str, Any], *paths: str) -> Iterator[object]:
    """What *holder* has at each of *paths*, such as "metadata.session_id"."""
    for path in paths:
        value: object = holder
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        yield value
