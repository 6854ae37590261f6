"""The contract of a storage, by the protocols that it implements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from ..errors import SettingsError
from ..settings import CALLABLE
from ..storage import Archive, JournalStorage, TextReader, TextWriter
from .contract_failures import FAILURE_CHECKS, MISSING_CHECKS, REDACTION_CHECKS
from .contract_journals import JOURNAL_CHECKS, LEASE_CHECKS
from .contract_notes import NOTE_CHECKS
from .contract_sessions import DELETE_CHECKS, LIST_CHECKS, SESSION_CHECKS
from .contract_texts import RECORD_CHECKS, TEXT_CHECKS
from .storage import Check, Factory, Failing, Redacting, StorageCheck, StoragePlace, expect

PROTOCOLS: tuple[type, ...] = (TextWriter, TextReader, Archive, JournalStorage)
EXTRAS: Mapping[str, tuple[Check, ...]] = {
    "add_notes": NOTE_CHECKS,
    "delete": DELETE_CHECKS,
    "lease": LEASE_CHECKS,
    "missing": MISSING_CHECKS,
    "sessions": LIST_CHECKS,
}


def storage_conformance(
    factory: Factory,
    *,
    protocols: Collection[type] = PROTOCOLS,
    extras: Collection[str] = (),
    redacting: Redacting | None = None,
    failing: Failing | None = None,
) -> list[StorageCheck]:
    """The contract of a storage, one check for each sentence; a check is an async function.

    ``factory(place)`` gives a storage, or an awaitable of one, on the place of that name, which is
    a word: storages with one place share all, as those of two processes do, and a new place is
    empty. What is given is closed with its ``aclose``, if it has one. *protocols* are those it
    implements, *extras* which of "add_notes", "delete", "lease", "missing" and "sessions" it has
    besides.

    ``redacting(place, redact)`` gives a storage that hides secrets. ``failing(place, operations)``
    is an async context manager that gives one whose backend works for so many operations and then
    fails. Without them the contract is checked without those sentences.

    Raises SettingsError for an unknown protocol or extra.
    """
    CALLABLE.check("factory", factory)
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            known = ", ".join(known.__name__ for known in PROTOCOLS)
            raise SettingsError(f"protocols holds {protocol!r}; give some of {known}")
    for extra in extras:
        if extra not in EXTRAS:
            raise SettingsError(f"extras holds {extra!r}; give some of {', '.join(EXTRAS)}")
    checks: list[Check] = [_implements(protocols, extras)]
    if TextWriter in protocols and TextReader in protocols:
        checks += TEXT_CHECKS
    if Archive in protocols:
        checks += RECORD_CHECKS
    if JournalStorage in protocols:
        checks += (*JOURNAL_CHECKS, *SESSION_CHECKS)
    for extra in extras:
        checks += EXTRAS[extra]
    if redacting is not None:
        checks += REDACTION_CHECKS
    for protocol in protocols if failing else ():
        checks += FAILURE_CHECKS[protocol]
    place = partial(StoragePlace, factory, redacting, failing)
    return [StorageCheck(check.__name__.replace("_", " "), check, place) for check in checks]


def _implements(protocols: Collection[type], extras: Collection[str]) -> Check:
    async def it_has_what_is_checked_and_nothing_else(storage: object) -> None:
        for protocol in PROTOCOLS:
            is_there = isinstance(storage, protocol)
            expect(is_there or protocol not in protocols, f"it is a {protocol.__name__}")
            expect(not is_there or protocol in protocols, f"{protocol.__name__} is checked as well")
        for extra in EXTRAS:
            is_there = hasattr(storage, extra)
            expect(is_there is (extra in extras), f"extras says whether it has {extra!r}")

    return it_has_what_is_checked_and_nothing_else
