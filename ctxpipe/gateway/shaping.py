"""What shapes the requests of a gateway: pipelines, storage, and the conversations so far."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from .._threads.threads import in_thread
from ..conversation.conversation import Conversation
from ..messages import Message, common_prefix
from ..providers.prices import Prices
from ..session.client import BETA
from ..session.session import conversation_of
from ..storage import JournalStorage, LocalStorage
from ..storage.memory import MemoryStorage
from ..tokens import TokenCounter
from ..tokens.spent import Kind, Pieces
from ..wire.conversations import Conversations, Dialog
from ..wire.exchange import FindConversation, Found, HttpExchange, max_head_chars
from .journals import open_journal
from .names import conversation_name
from .pipelines import Pipelines
from .settings import Settings


class Shaper:
    """Shapes the requests of everybody who shows the same *token*.

    In a dry run nothing is written, and what it makes of requests is not sent. *storage* has what
    has left their contexts; it is None where nothing is written. *owner* is a digest of the token.
    """

    def __init__(self, settings: Settings, token: str = "") -> None:
        self.is_dry: bool = settings.dry_run
        self.owner: str = hashlib.sha256(token.encode()).hexdigest()[:16] if token else ""
        storage = None
        if settings.root is not None and not self.is_dry:
            storage = LocalStorage(settings.root / self.owner)
        self.storage: LocalStorage | None = storage
        self._journal: JournalStorage | None = storage
        if settings.journal is not None and not self.is_dry:
            self._journal = open_journal(settings.journal, storage, self.owner)
        texts = MemoryStorage() if self.is_dry else storage
        # What is not sent in the end is not worth a request.
        self.summary_model: str | None = None if self.is_dry else settings.summary_model
        self._pipelines = Pipelines(
            settings.preset,
            texts,
            window=settings.window,
            prices=replace(Prices.relative(), ttl_seconds=settings.cache_seconds),
            work_dir=settings.work_dir,
            pin=settings.pin,
            summary_model=self.summary_model,
        )
        self._cache_seconds = settings.cache_seconds
        self.conversations: Conversations = Conversations(
            max_bytes=settings.max_bytes // max(1, len(settings.tokens)),
            is_one_client=True,  # all that shows this token, or is on this machine
        )
        self._contents: WeakKeyDictionary[Dialog, Content] = WeakKeyDictionary()

    async def warm(self) -> None:
        """Load what the first turn would wait for."""
        await self._pipelines.of(None, "").counter.warm()

    async def close(self) -> None:
        """Give back the connections of the journal, if it has some."""
        close = getattr(self._journal, "aclose", None)
        if close is not None:
            await close()

    def find(self, headers: Mapping[str, str]) -> FindConversation:
        """Finds the conversation of a request with *headers*, whose names are in small letters."""

        def find(values: Mapping[str, Any]) -> Found:
            model = values.get("model")
            model = model if isinstance(model, str) else None
            pipeline = self._pipelines.of(model, headers.get(BETA, ""))

            def open_session(session_id: str, _is_held: bool) -> Conversation:
                session = pipeline.new_session(
                    session_id, journal=self._journal, cache_seconds=self._cache_seconds
                )
                return conversation_of(session)

            name = conversation_name(headers, values)
            return Found(name, open_session, max_head_chars(pipeline.budget))

        return find

    def learn_window(self, exchange: HttpExchange, headers: Mapping[str, str]) -> None:
        """Take the window that a refusal names for later conversations with the model."""
        refusal = exchange.refusal
        if not self.is_dry and refusal is not None and refusal.window is not None:
            self._pipelines.learn_window(exchange.model, headers.get(BETA, ""), refusal.window)

    async def kinds(self, exchange: HttpExchange) -> Mapping[Kind, int]:
        """What the tokens of the context that *exchange* sends are spent on."""
        dialog = exchange.dialog
        async with dialog.lock:
            return await in_thread(
                self._contents.setdefault(dialog, Content()).read,
                self._pipelines.of(None, "").counter,
                exchange.result.messages,
                exchange.arguments["system"],
                exchange.arguments["tools"],
            )


class Content:
    """Tells the tokens of one conversation's contexts apart by kind, as the replay page does.

    What a context has in common with the one before it is not read again.
    """

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._sums: list[Counter[Kind]] = [Counter()]  # of the first 0, 1, 2 … messages

    def read(
        self,
        counter: TokenCounter,
        messages: Sequence[Message],
        system: Any = None,
        tools: Any = None,
    ) -> Mapping[Kind, int]:
        """The raw tokens of a context by kind; one context at a time."""
        pieces = Pieces(counter)  # a new one each time: it keeps the messages that it has read
        del self._sums[common_prefix(self._messages, messages) + 1 :]
        for message in messages[len(self._sums) - 1 :]:
            found = Counter(self._sums[-1])
            for piece in pieces.of(message):
                found[piece.kind] += piece.tokens
            self._sums.append(found)
        self._messages = list(messages)
        whole = Counter(self._sums[-1])
        whole["system"] += counter.total([], system=system)
        whole["tools"] += counter.total([], tools=tools)
        return {kind: tokens for kind, tokens in whole.items() if tokens}
