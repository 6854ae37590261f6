"""The contract of a storage, as checks that any implementation can run."""

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
Redacting: TypeAlias = Callable[[str, Callable[[str], str]], Any]
Failing: TypeAlias = Callable[[str, int], AbstractAsyncContextManager[Any]]


class ContractBroken(AssertionError):
    """A storage does not do what its protocol says."""


def expect(is_kept: object, promise: str) -> None:
    """Raise ContractBroken, saying the *promise*, unless it is kept."""
    if not is_kept:
        raise ContractBroken(promise)


async def expect_error(
    work: Awaitable[object], promise: str, kind: type[Exception] = StorageError
) -> Any:
    """The error of that *kind* that *work* must raise. Raises ContractBroken for none."""
    try:
        await work
    except kind as error:
        return error
    raise ContractBroken(f"{promise}: {kind.__name__}")


async def eight_at_once(work: Callable[[int], Coroutine[Any, Any, object]]) -> None:
    """Do *work* with each number below eight, all at the same time."""
    async with anyio.create_task_group() as workers:
        for number in range(8):
            workers.start_soon(work, number)


async def write_one(storage: Any, key: str, text: str) -> str:
    """Write *text* under *key*; its location."""
    [location] = await storage.write([(key, text)])
    return str(location)


async def text_at(storage: Any, location: str) -> str:
    """The whole text that *storage* has at *location*."""
    return str((await storage.read(location)).text)


async def text_or_none(storage: Any, location: str) -> str | None:
    """The text at *location*, None where there is none."""
    try:
        return await text_at(storage, location)
    except StorageError as error:
        expect(error.errno == errno.ENOENT, "what was not written is not there")
        return None


async def expect_texts(
    storage: Any, locations: Iterable[str], texts: Iterable[str], promise: str
) -> None:
    """Raise ContractBroken unless *storage* has the *texts* at their *locations*."""
    for location, text in zip(locations, texts, strict=True):
        expect(await text_or_none(storage, location) == text, promise)


async def entries_of(journal: Any, session: str, start: int = 0) -> list[str]:
    """The entries of *session* in *journal*, from number *start* on."""
    return list(await journal.entries(session, start))


@dataclass(slots=True)
class StoragePlace:
    """A new and empty place, and the storages on it.

    ``make``, ``redacting`` and ``failing`` are what `storage_conformance` was given.
    """

    make: Factory
    redacting: Any = None
    failing: Any = None
    name: str = field(default_factory=lambda: f"p{secrets.token_hex(6)}")
    _made: dict[int, Any] = field(default_factory=dict)  # by identity: one may be given twice

    async def storage(self, name: str = "") -> Any:
        """A storage on this place, or on the one called *name*."""
        return await self._keep(self.make(name or self.name))

    async def other(self) -> Any:
        """A storage on another place."""
        return await self.storage(f"{self.name}b")

    async def storages(self, count: int) -> list[Any]:
        """Several on this place, as in several processes."""
        return [await self.storage() for _ in range(count)]

    async def redacting_storage(self, redact: Callable[[str], str]) -> Any:
        """A storage on this place that hides secrets with *redact*."""
        return await self._keep(self.redacting(self.name, redact))

    async def close(self) -> None:
        """Close every storage that can be closed."""
        for storage in self._made.values():
            if hasattr(storage, "aclose"):
                with suppress(StorageError):
                    await storage.aclose()

    async def _keep(self, made: Any) -> Any:
        storage = await made if inspect.isawaitable(made) else made
        self._made[id(storage)] = storage
        return storage


Check: TypeAlias = Callable[..., Awaitable[None]]
"""A sentence of the contract.

A parameter called *place* is given the place, any other one a storage on it.
"""


@dataclass(frozen=True, slots=True)
class StorageCheck:
    """One sentence of the contract; call it to have it checked. Raises ContractBroken."""

    name: str
    check: Check = field(repr=False)
    place: Callable[[], StoragePlace] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    async def __call__(self) -> None:
        place = self.place()
        try:
            names = inspect.signature(self.check).parameters
            given = [place if name == "place" else await place.storage() for name in names]
            await self.check(*given)
        finally:
            await place.close()
