"""The shaper of a gateway: its pipelines, storage, journal and open conversations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from .._threads.threads import in_thread
from ..providers.prices import Prices
from ..session.client import BETA
from ..session.conversation import Conversation
from ..session.session import new_conversation
from ..session.settings import SessionSettings
from ..storage import JournalStorage, LocalStorage
from ..storage.memory import MemoryStorage
from ..wire.conversations import Conversations, Dialog
from ..wire.exchange import FindConversation, HttpExchange, SessionSource, max_head_chars
from .budget import SessionBudget
from .journals import open_journal
from .kinds import ContextKinds, KindCounts
from .names import conversation_name
from .pipelines import Pipelines
from .settings import GatewaySettings
from .tokens import NO_TOKEN, Token

DAY_SECONDS = 86_400
REDACTED = "[redacted]"


def redaction(patterns: Sequence[str]) -> Callable[[str], str]:
    """Return a function that replaces what one of the regular expressions *patterns* finds."""
    expression = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    return partial(expression.sub, REDACTED)


class Shaper:
    """The pipelines and conversations of one tenant: all clients whose *token* has its name.

    In a dry run nothing is written, and the shaped requests are not sent. *storage* holds the
    offloaded texts; it is None if nothing is written. *owner* is the digest by which the tenant's
    folder and journals are called, *label* the tenant in the log; both are "" without tokens.
    """

    def __init__(self, settings: GatewaySettings, token: Token = NO_TOKEN) -> None:
        self._settings = settings
        self.is_dry: bool = settings.dry_run
        self.owner: str = token.owner
        self.label: str = token.label
        redact = redaction(settings.redact) if settings.redact else None
        storage = None
        if settings.root is not None and not self.is_dry:
            storage = LocalStorage(settings.root / self.owner, redact=redact)
        self.storage: LocalStorage | None = storage
        self.journal: JournalStorage | None = storage
        if settings.journal is not None and not self.is_dry:
            self.journal = open_journal(settings.journal, storage, self.owner, redact)
        # A dry run does not send the shaped request, so it pays for no summary either.
        self.summary_model: str | None = None if self.is_dry else settings.summary_model
        self.pipelines: Pipelines = self.new_pipelines()
        self.budget: SessionBudget | None = None
        if settings.session_budget is not None:
            self.budget = SessionBudget(settings.session_budget, self.journal)
        self.breakpoints: int | None = settings.cache_breakpoints
        self._session_settings = SessionSettings(
            journal=self.journal, cache_seconds=settings.cache_seconds
        )
        self.conversations: Conversations = Conversations(
            max_bytes=settings.max_bytes // max(1, len(settings.tokens)),
            is_one_client=True,  # all clients with this token, or all on this machine
        )
        self._contexts: WeakKeyDictionary[Dialog, ContextKinds] = WeakKeyDictionary()

    def new_pipelines(self) -> Pipelines:
        """Return the pipelines that the settings name, read from their file again.

        Raises SettingsError if they cannot be read.
        """
        settings = self._settings
        return Pipelines(
            settings.preset,
            MemoryStorage() if self.is_dry else self.storage,
            window=settings.window,
            prices=replace(Prices.relative(), ttl_seconds=settings.cache_seconds),
            work_dir=settings.work_dir,
            pin=settings.pin,
            summary_model=self.summary_model,
        )

    async def clean_up(self) -> None:
        """Delete texts, archives and journals that are older than the settings allow.

        Raises StorageError.
        """
        if self._settings.max_days is None:
            return
        max_age = self._settings.max_days * DAY_SECONDS
        if self.storage is not None:
            await self.storage.cleanup(max_age=max_age, records=True)
        clean_up_journal = getattr(self.journal, "cleanup", None)  # a Redis deletes by itself
        if self.journal is not self.storage and clean_up_journal is not None:
            await clean_up_journal(max_age=max_age)

    async def warm(self) -> None:
        """Load the token counter, so that the first turn does not wait for it."""
        await self.pipelines.of(None, "").counter.warm()

    async def close(self) -> None:
        """Write the sums of the session budgets, and close the connections of the journal."""
        if self.budget is not None:
            await self.budget.close()
        close = getattr(self.journal, "aclose", None)
        if close is not None:
            await close()

    def find(self, headers: Mapping[str, str]) -> FindConversation:
        """Return a function that finds the conversation of a request with these *headers*.

        The names of *headers* are in lower case. The function takes the fields of the body.
        """

        def find(values: Mapping[str, Any]) -> SessionSource:
            """Return the source of the session for a request with the fields *values*."""
            model = values.get("model")
            if not isinstance(model, str):
                model = None
            pipeline = self.pipelines.of(model, headers.get(BETA, ""))

            def open_session(session_id: str, *, is_id_used: bool) -> Conversation:  # noqa: ARG001
                """Return a new conversation with the id *session_id*."""
                return new_conversation(pipeline, session_id, self._session_settings)

            name = conversation_name(headers, values)
            return SessionSource(name, open_session, max_head_chars(pipeline.budget))

        return find

    def learn_window(self, exchange: HttpExchange, headers: Mapping[str, str]) -> None:
        """Use the window that a refusal names for later conversations with the same model."""
        refusal = exchange.refusal
        if not self.is_dry and refusal is not None and refusal.window is not None:
            self.pipelines.learn_window(exchange.model, headers.get(BETA, ""), refusal.window)

    def kinds(self, exchange: HttpExchange) -> KindCounts:
        """Return the raw tokens of the context that *exchange* sends, by kind of content.

        They are counted when they are first used.
        """
        contexts = self._contexts.get(exchange.dialog)
        if contexts is None:
            contexts = ContextKinds(self.pipelines.of(None, "").counter)
            self._contexts[exchange.dialog] = contexts
        request = exchange.request
        return contexts.add(exchange.result.messages, request.system, request.tools)

    async def count_kinds(self, exchange: HttpExchange) -> None:
        """Count the contexts of a conversation by kind if they take too much memory uncounted."""
        contexts = self._contexts.get(exchange.dialog)
        if contexts is not None and contexts.is_due:
            await in_thread(contexts.count)
