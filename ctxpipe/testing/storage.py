"""Helpers for the contract of a storage: expectations, places, and checks."""

from __future__ import annotations

import errno
import inspect
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio

from ..errors import StorageError

Factory: TypeAlias = Callable[[str], Any]
"""Function from the name of a place to a storage on it, or to an awaitable of one."""

Redacting: TypeAlias = Callable[[str, Callable[[str], str]], Any]
"""Function from a place and a function that hides secrets to a storage that uses the function."""

Failing: TypeAlias = Callable[[str, int], AbstractAsyncContextManager[Any]]
"""Function from a place and a number of operations to a context manager with a storage.

The backend of this storage works for that number of operations, and then fails.
"""


class ContractBroken(AssertionError):
    """Raised if a storage breaks a promise of its protocol; the text is the promise."""


def expect(is_satisfied: object, promise: str) -> None:
    """Raise ContractBroken with the text *promise* unless *is_satisfied*."""
    if not is_satisfied:
        raise ContractBroken(promise)


async def expect_error(
    work: Awaitable[object], promise: str, kind: type[Exception] = StorageError
) -> Any:
    """Return the error of this *kind* that *work* raises.

    Raises ContractBroken with the text *promise* if *work* raises nothing. Errors of another kind
    are raised unchanged.
    """
    try:
        await work
    except kind as error:
        return error
    raise ContractBroken(f"{promise}: {kind.__name__}")


async def eight_at_once(work: Callable[[int], Coroutine[Any, Any, object]]) -> None:
    """Run *work* with each number from 0 to 7, all at the same time."""
    async with anyio.create_task_group() as workers:
        for number in range(8):
            workers.start_soon(work, number)


async def write_one(storage: Any, key: str, text: str) -> str:
    """Write *text* under *key*, and return its location."""
    [location] = await storage.write([(key, text)])
    return str(location)


async def text_at(storage: Any, location: str) -> str:
    """Return the whole text that *storage* has at *location*."""
    return str((await storage.read(location)).text)


async def text_or_none(storage: Any, location: str) -> str | None:
    """Return the text at *location*, or None if it does not exist."""
    try:
        return await text_at(storage, location)
    except StorageError as error:
        expect(error.errno == errno.ENOENT, "what was not written is not there")
        return None


async def expect_texts(
    storage: Any, locations: Iterable[str], texts: Iterable[str], promise: str
) -> None:
    """Raise ContractBroken unless *storage* has the *texts* at their *locations*.

    *promise* is the text of the error.
    """
    for location, text in zip(locations, texts, strict=True):
        expect(await text_or_none(storage, location) == text, promise)


async def entries_of(journal: Any, session: str, start: int = 0) -> list[str]:
    """Return the entries of *session* in *journal*, from number *start* on."""
    return list(await journal.entries(session, start))


@dataclass(slots=True)
class StoragePlace:
    """New and empty place, with the storages on it.

    ``make`` is the ``factory`` of `storage_conformance`; ``redacting`` and ``failing`` are its
    arguments of these names.
    """

    make: Factory
    redacting: Any = None
    failing: Any = None
    name: str = field(default_factory=lambda: f"p{secrets.token_hex(6)}")
    # by id(): the factory may return the same storage twice
    _open_storages: dict[int, Any] = field(default_factory=dict)

    async def storage(self, name: str = "") -> Any:
        """Return a storage on this place, or on the place with this *name*."""
        return await self._keep(self.make(name or self.name))

    async def other(self) -> Any:
        """Return a storage on another place."""
        return await self.storage(f"{self.name}b")

    async def storages(self, count: int) -> list[Any]:
        """Return *count* storages on this place, like those of several processes."""
        return [await self.storage() for _ in range(count)]

    async def redacting_storage(self, redact: Callable[[str], str]) -> Any:
        """Return a storage on this place that hides secrets with *redact*."""
        return await self._keep(self.redacting(self.name, redact))

    async def close(self) -> None:
        """Call ``aclose`` of every storage that has it. A StorageError of one is ignored."""
        for storage in self._open_storages.values():
            if hasattr(storage, "aclose"):
                with suppress(StorageError):
                    await storage.aclose()

    async def _keep(self, storage: Any) -> Any:
        """Return *storage*, awaited if necessary, and remember to close it."""
        if inspect.isawaitable(storage):
            storage = await storage
        self._open_storages[id(storage)] = storage
        return storage


Check: TypeAlias = Callable[..., Awaitable[None]]
"""Check of one sentence of the contract.

A parameter called *place* receives the `StoragePlace`, any other one a storage on it.
"""


@dataclass(frozen=True, slots=True)
class StorageCheck:
    """A check that a storage satisfies one sentence of the contract, its *name*.

    ``await check()`` runs it, and raises ContractBroken if the storage does not.
    """

    name: str
    check: Check = field(repr=False)
    place: Callable[[], StoragePlace] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    async def __call__(self) -> None:
        """Run the check on a new place, which is closed afterwards. Raises ContractBroken."""
        place = self.place()
        try:
            names = inspect.signature(self.check).parameters
            arguments = [place if name == "place" else await place.storage() for name in names]
            await self.check(*arguments)
        finally:
            await place.close()
