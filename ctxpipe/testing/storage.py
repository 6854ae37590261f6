"""The contract of a storage, as checks that any implementation can run."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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


async def expect_error(work: Awaitable[object], promise: str) -> StorageError:
    """The StorageError that *work* must raise. Raises ContractBroken when it raises none."""
    try:
        await work
    except StorageError as error:
        return error
    raise ContractBroken(f"{promise}: StorageError")


@dataclass(slots=True)
class StoragePlace:
    """A new and empty place, and the storages on it."""

    make: Factory
    redacting: Redacting | None = None
    failing: Failing | None = None
    name: str = field(default_factory=lambda: f"p{secrets.token_hex(6)}")
    _made: list[Any] = field(default_factory=list)

    async def storage(self, name: str = "") -> Any:
        """A storage on this place, or on the one called *name*."""
        return await self._keep(self.make(name or self.name))

    async def storages(self, count: int) -> list[Any]:
        """Several on this place, as in several processes."""
        return [await self.storage() for _ in range(count)]

    async def redacting_storage(self, redact: Callable[[str], str]) -> Any:
        """A storage on this place that hides secrets with *redact*."""
        if self.redacting is None:
            raise ContractBroken("no factory makes a storage that redacts")
        return await self._keep(self.redacting(self.name, redact))

    def failing_storage(self, operations: int) -> AbstractAsyncContextManager[Any]:
        """A storage on this place whose backend fails after so many *operations*."""
        if self.failing is None:
            raise ContractBroken("no factory makes a storage that fails")
        return self.failing(self.name, operations)

    async def close(self) -> None:
        """Close every storage that can be closed."""
        for storage in self._made:
            close = getattr(storage, "aclose", None)
            if close is not None:
                with suppress(StorageError):
                    await close()
        self._made.clear()

    async def _keep(self, made: Any) -> Any:
        storage = await made if inspect.isawaitable(made) else made
        if not any(storage is other for other in self._made):
            self._made.append(storage)
        return storage


Check: TypeAlias = Callable[[StoragePlace], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StorageCheck:
    """One sentence of the contract; call it to have it checked. Raises ContractBroken."""

    name: str
    check: Check = field(repr=False)
    make: Factory = field(repr=False)
    redacting: Redacting | None = field(default=None, repr=False)
    failing: Failing | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.name

    async def __call__(self) -> None:
        place = StoragePlace(self.make, self.redacting, self.failing)
        try:
            await self.check(place)
        finally:
            await place.close()
