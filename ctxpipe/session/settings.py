"""The settings of a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..settings import FLAG, FUNCTION, NUMBER, POSITIVE, check_settings
from ..storage import JournalStorage
from ..storage.protocol import JOURNAL_STORAGE
from ..storage.sealed import KEYS

CACHE_SECONDS = 300.0
"""Default lifetime of the provider's prompt cache, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The settings of a session; `ContextPipeline.session` explains each of them.

    Raises SettingsError for an invalid setting.
    """

    journal: JournalStorage | None = None
    verify: bool = False
    cache_seconds: float = CACHE_SECONDS
    clock: Callable[[], float] = time.time
    history: bool = True
    signing_key: bytes | Sequence[bytes] | None = field(default=None, repr=False)
    lease_seconds: float | None = None
    store_seconds: float | None = None

    def __post_init__(self) -> None:
        check_settings(
            self,
            journal=JOURNAL_STORAGE.optional,
            verify=FLAG,
            cache_seconds=NUMBER,
            clock=FUNCTION,
            history=FLAG,
            signing_key=KEYS.optional,
            lease_seconds=NUMBER.optional,
            store_seconds=POSITIVE.optional,
        )

    def without_journal(self) -> SessionSettings:
        """Return the same settings without a journal, and without all that only a journal needs."""
        return SessionSettings(
            verify=self.verify,
            cache_seconds=self.cache_seconds,
            clock=self.clock,
            store_seconds=self.store_seconds,
        )
