"""Each request of a gateway through its session: shape it, recover, learn from the bill."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any

from ..edits.thinking import BINDING_BETA
from ..refusals import MAX_TEXT, read_refusal
from ..session.client import BETA, has_usage
from ..session.session import conversation_of
from ..storage import LocalStorage
from ..storage.memory import MemoryStorage
from ..workers.threads import in_thread_if
from .body import Body, read_body
from .conversations import Conversation, Conversations, Question
from .formats import Format, History, model_of
from .journals import open_journal
from .names import conversation_name
from .pipelines import Pipelines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..reports import Result
    from ..session import conversation as core
    from ..storage import JournalStorage
    from ..tokens.spent import Kind
    from .settings import Settings
    from .upstream import Headers

__all__ = ["Shaper", "Shaping"]

IN_THREAD = 256 * 1024  # bytes of a body that are read beside the event loop


@dataclass(slots=True, eq=False)
class Shaping:
    """One request on its way: what it said, and the context that is sent in place of it."""

    format: Format
    body: Body = field(repr=False)
    history: History = field(repr=False)
    conversation: Conversation
    result: Result = field(repr=False)
    items: list[Any] = field(default_factory=list, repr=False)
    usage: dict[str, Any] = field(default_factory=dict)
    is_dry: bool = False

    def __post_init__(self) -> None:
        self.take(self.result)

    def take(self, result: Result) -> None:
        """Send *result* from now on."""
        self.result = result
        items = self.history.write(result.messages)
        rewritten = self.conversation.session.rewrite_range(result)
        self.items = list(self.format.mark_rewrite(self.body, items, rewritten))
        self.conversation.saved += result.tokens_saved

    @property
    def model(self) -> str | None:
        """The model that is asked."""
        return model_of(self.body.values)

    @property
    def is_changed(self) -> bool:
        """Whether another body is sent than the client's."""
        if self.is_dry:
            return False
        if self.result.request_options:
            return True
        received = self.body.items
        if len(self.items) != len(received):
            return True
        return not all(map(is_, self.items, received))

    def content(self) -> bytes:
        """The body to send: the client's own bytes where nothing is changed."""
        if not self.is_changed:
            return self.body.raw
        extra = self.result.request_options.get("extra_body")
        if not isinstance(extra, Mapping):
            extra = {}
        return self.body.write(self.items, extra)

    def headers(self, headers: Headers) -> Headers:
        """*headers* with the beta that the context needs, beside those of the client."""
        if self.is_dry or not self.result.request_options:
            return headers
        betas: list[str] = []
        others: list[tuple[str, str]] = []
        for name, value in headers:
            if name.lower() != BETA:
                others.append((name, value))
                continue
            names = [beta.strip() for beta in value.split(",")]
            betas += filter(None, names)
        betas.append(BINDING_BETA)
        distinct = dict.fromkeys(betas)
        return [*others, (BETA, ",".join(distinct))]


class Shaper:
    """Shapes the requests of everybody who shows the same *token*.

    In a dry run nothing is written, and what it makes of requests is not sent. *storage* has what
    has left their contexts; it is None where nothing is written. *owner* is a digest of the token.
    """

    def __init__(self, settings: Settings, token: str = "") -> None:
        self._is_dry = settings.dry_run
        self.owner: str = _owner(token)
        storage = _storage(settings, self.owner)
        self.storage: LocalStorage | None = storage
        self._journal: JournalStorage | None = storage
        if settings.journal is not None and not self._is_dry:
            self._journal = open_journal(settings.journal, storage, self.owner)
        texts: LocalStorage | MemoryStorage | None = storage
        if self._is_dry:
            texts = MemoryStorage()
        self._pipelines = Pipelines(
            settings.preset,
            texts,
            window=settings.window,
            work_dir=settings.work_dir,
        )
        self.conversations: Conversations = Conversations(
            max_bytes=settings.max_bytes // max(1, len(settings.tokens)),
            shared=settings.journal is not None,
        )

    async def warm(self) -> None:
        """Load what the first turn would wait for."""
        await self._pipelines.of(None, "").counter.warm()

    async def close(self) -> None:
        """Give back the connections of the journal, if it has some."""
        close = getattr(self._journal, "aclose", None)
        if close is not None:
            await close()

    def shape(
        self,
        known: Format,
        headers: Mapping[str, str],
        raw: bytes,
    ) -> AbstractAsyncContextManager[Shaping | None]:
        """The request in *raw* with the context of its conversation, for as long as it is sent.

        None where it is not ours to shape. *headers* have names in small letters. Raises Refused,
        ValueError for a body that is no JSON, and what a session raises.
        """
        return self._shape(known, headers, raw)

    @asynccontextmanager
    async def _shape(
        self,
        known: Format,
        headers: Mapping[str, str],
        raw: bytes,
    ) -> AsyncIterator[Shaping | None]:
        is_bulk = len(raw) > IN_THREAD
        last = self.conversations.bodies()
        body = await in_thread_if(
            is_bulk,
            read_body,
            raw,
            known.key,
            *last,
        )
        if body is None or not known.is_ours(body):
            yield None
            return
        model = model_of(body.values)
        betas = headers.get(BETA, "")
        pipeline = self._pipelines.of(model, betas)

        def open_session(session_id: str) -> core.Conversation:
            return conversation_of(pipeline.new_session(session_id, journal=self._journal))

        conversation = await self.conversations.find(
            conversation_name(headers, body.values),
            Question(known, body),
            open_session,
        )
        try:
            yield await self._run(known, body, conversation)
        finally:
            self.conversations.release(conversation)

    async def _run(
        self,
        known: Format,
        body: Body,
        conversation: Conversation,
    ) -> Shaping | None:
        """The context for *body*; None where calls at its end have no result yet."""
        # Reading, running and writing belong together: a translation remembers one turn.
        async with conversation.lock:
            history = conversation.translate(body)
            if history is None:
                return None
            session = conversation.session
            result = await session.run(history.messages, **history.arguments)
            return Shaping(
                known,
                body,
                history,
                conversation,
                result,
                is_dry=self._is_dry,
            )

    async def recover(
        self,
        shaping: Shaping,
        headers: Mapping[str, str],
        status: int,
        answer: bytes,
    ) -> bool:
        """Whether there is a shorter context to send, after *answer* with *status*."""
        text = answer[:MAX_TEXT].decode("utf-8", "replace")
        refusal = read_refusal(status, text)
        if refusal is None or self._is_dry:
            return False
        conversation = shaping.conversation
        if refusal.window is not None:
            betas = headers.get(BETA, "")
            self._pipelines.learn_window(shaping.model, betas, refusal.window)
        async with conversation.lock:
            history = conversation.translate(shaping.body)
            if history is None:
                return False
            shorter = await conversation.session.recover(
                refusal,
                history.messages,
                shaping.result,
                **history.arguments,
            )
            if shorter is None:
                return False
            shaping.history = history
            shaping.take(shorter)
        return True

    async def kinds(self, shaping: Shaping) -> Mapping[Kind, int]:
        """What the tokens of the context that *shaping* sends are spent on."""
        conversation = shaping.conversation
        arguments = shaping.history.arguments
        async with conversation.lock:
            return await conversation.content.read(
                self._pipelines.of(None, "").counter,
                shaping.result.messages,
                system=arguments.get("system"),
                tools=arguments.get("tools"),
            )

    def learn(self, shaping: Shaping, event: Mapping[str, Any]) -> None:
        """Learn what the reply to *shaping*, of which *event* is a part, was billed."""
        reply = shaping.format.bill_in(event)
        if reply is None:
            return
        usage = reply.get("usage")
        if not isinstance(usage, dict):
            return
        for name, value in usage.items():
            if value is not None:
                shaping.usage[name] = value
        if self._is_dry:  # the bill is that of another context
            return
        if shaping.format.is_whole(event) and has_usage(reply):
            session = shaping.conversation.session
            session.observe(reply, shaping.result.messages)


def _storage(settings: Settings, owner: str) -> LocalStorage | None:
    """Where the texts and archives of *owner* are kept; None where nothing is written."""
    if settings.root is None or settings.dry_run:
        return None
    return LocalStorage(settings.root / owner)


def _owner(token: str) -> str:
    """What stands for those who show *token* in names; nothing where there are no tokens."""
    digest = hashlib.sha256(token.encode())
    return digest.hexdigest()[:16] if token else ""
