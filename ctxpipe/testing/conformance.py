"""Contract of a storage, by the protocols that the storage implements."""

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
    """Return the contract of a storage: one check per sentence, to call and await.

        for check in storage_conformance(make_storage):
            await check()  # raises ContractBroken, with the sentence that is not satisfied

    ``factory(place)`` returns a storage, or an awaitable of one. *place* is a word that names where
    the storage keeps its texts, such as a folder or a table: the checks choose it. Two storages
    with the same *place* share everything, like those of two processes; a new *place* is empty.
    Each storage is closed with its ``aclose``, if it has one. *protocols* are the protocols that
    the storage implements, *extras* the optional methods that it has: any of "add_notes", "delete",
    "lease", "missing" and "sessions". A storage that writes and reads texts needs "missing".

    ``redacting(place, redact)`` returns a storage that hides secrets. ``failing(place,
    operations)`` returns an async context manager with a storage whose backend works for this
    number of operations and then fails. Without them, the checks of secrets or of failures are
    left out.

    Raises SettingsError for an unknown protocol or extra.
    """
    CALLABLE.check("factory", factory)
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            protocol_names = ", ".join(one.__name__ for one in PROTOCOLS)
            raise SettingsError(f"protocols holds {protocol!r}; give some of {protocol_names}")
    for extra in extras:
        if extra not in EXTRAS:
            raise SettingsError(f"extras holds {extra!r}; give some of {', '.join(EXTRAS)}")
    checks: list[Check] = [_implements(protocols, extras)]
    if TextWriter in protocols and TextReader in protocols:
        checks += TEXT_CHECKS
        checks += MISSING_CHECKS
    if Archive in protocols:
        checks += RECORD_CHECKS
    if JournalStorage in protocols:
        checks += (*JOURNAL_CHECKS, *SESSION_CHECKS)
    for extra in extras:
        checks += [check for check in EXTRAS[extra] if check not in checks]
    if redacting is not None:
        checks += REDACTION_CHECKS
    for protocol in protocols if failing else ():
        checks += FAILURE_CHECKS[protocol]
    place = partial(StoragePlace, factory, redacting, failing)
    return [StorageCheck(check.__name__.replace("_", " "), check, place) for check in checks]


def _implements(protocols: Collection[type], extras: Collection[str]) -> Check:
    """Return the check that a storage has exactly these *protocols* and *extras*."""

    async def it_has_what_is_checked_and_nothing_else(storage: object) -> None:
        """Check that *storage* has the protocols and extras that are checked, and no others."""
        for protocol in PROTOCOLS:
            is_there = isinstance(storage, protocol)
            expect(is_there or protocol not in protocols, f"it is a {protocol.__name__}")
            expect(not is_there or protocol in protocols, f"{protocol.__name__} is checked as well")
        for extra in EXTRAS:
            if extra == "missing" and TextReader in protocols:
                continue  # the checks of texts need it
            is_there = hasattr(storage, extra)
            expect(is_there is (extra in extras), f"extras says whether it has {extra!r}")

    return it_has_what_is_checked_and_nothing_else
