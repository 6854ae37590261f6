"""Journals in Redis, for the workers of a service."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import fail_after

from .._threads.threads import PerLoop
from ..settings import POSITIVE, TEXT, check_extra, check_settings
from .generations import tombstone_name, tombstone_seconds
from .shared_journals import LEASE_SECONDS, Contents, NewEntry, ServerJournal

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")


# A journal is a list: its name, which is the token of its first entry, then "<token> <entry>".
# A script runs alone: the length of the list decides who was first.
_APPEND = """
local tombstone = redis.call('get', KEYS[3])
if tombstone and ARGV[7] ~= '-' and ARGV[7] ~= tombstone then
    return false
end
local size = redis.call('llen', KEYS[1])
local number = tonumber(ARGV[1])
local journal = redis.call('lindex', KEYS[1], 0)
if size == 0 and number == 0 then
    journal = ARGV[3]
    redis.call('rpush', KEYS[1], journal)
elseif size ~= number + 1 or (ARGV[4] ~= '' and ARGV[4] ~= journal) then
    local there = redis.call('lindex', KEYS[1], number + 1)
    if there and string.sub(there, 1, #ARGV[3]) == ARGV[3] then
        return journal
    end
    return false
end
redis.call('rpush', KEYS[1], ARGV[3] .. ' ' .. ARGV[2])
redis.call('set', KEYS[2], ARGV[6])
if tonumber(ARGV[5]) > 0 then
    redis.call('pexpire', KEYS[1], ARGV[5])
    redis.call('pexpire', KEYS[2], ARGV[5])
end
return journal
"""
_ENTRIES = """
return {
    redis.call('lindex', KEYS[1], 0),
    redis.call('lrange', KEYS[1], ARGV[1], -1),
    redis.call('get', KEYS[2])
}
"""
_DELETE = """
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
redis.call('del', KEYS[2], KEYS[3])
for _, aside in ipairs(redis.call('smembers', KEYS[4])) do
    redis.call('del', aside)
end
redis.call('del', KEYS[4])
"""
_RENAME = """
if redis.call('lindex', KEYS[1], 0) ~= ARGV[1] then
    return 0
end
redis.call('rename', KEYS[1], KEYS[2])
redis.call('sadd', KEYS[3], KEYS[2])
return 1
"""
_LEASE = """
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then
    return 0
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 1
"""
_RELEASE = """
if redis.call('get', KEYS[1]) == ARGV[1] then
    redis.call('del', KEYS[1])
end
"""


@dataclass(eq=False, repr=False)
class RedisJournal(ServerJournal):
    """The journals of sessions in the Redis at *url*, each a list.

    Redis must keep them: with ``appendonly yes`` and ``maxmemory-policy noeviction``. With
    *max_age* a journal that nobody has written to for so many seconds is deleted. *prefix* begins
    all keys. *texts* is the storage that the stages write to: what is there is not repeated in the
    journal. *redact* hides secrets, by default as *texts* does.

    A lease is a key that expires. A Redis that cannot be reached is waited for up to *patience*
    seconds, so that its restart costs a turn some time; one operation may take *timeout* seconds.

    Needs the extra ``ctxpipe[redis]``. Raises SettingsError for invalid settings, and where it is
    missing.
    """

    _server = "Redis"

    url: str = field(repr=False)  # it may hold a password
    _: KW_ONLY
    prefix: str = "ctxpipe"
    max_age: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, url=TEXT, prefix=TEXT, max_age=POSITIVE.optional)
        check_extra("RedisJournal", "redis", "redis")
        super().__post_init__()
        self._client: PerLoop[Redis] = PerLoop(self._connect)

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""
        await self._client.get().aclose()

    # What a database does -------------------------------------------------------------------------

    async def _append(self, new: NewEntry) -> str | None:
        keys = [*self._keys(new.session, "journal", "id"), self._grave(new.session)]
        milliseconds = int((self.max_age or 0) * 1000)
        tombstone = "-" if new.tombstone is None else new.tombstone
        entry = (new.number, new.entry, new.token, new.seen or "", milliseconds, new.name)
        answer = await self._eval(_APPEND, keys, *entry, tombstone)
        return answer.decode() if answer else None

    async def _entries(self, session: str, start: int) -> Contents:
        keys = [*self._keys(session, "journal"), self._grave(session)]
        journal, items, tombstone = await self._eval(_ENTRIES, keys, start + 1)
        entries = [item.decode().partition(" ")[2] for item in items]
        return journal and journal.decode(), entries, tombstone and tombstone.decode()

    async def _set_aside(self, session: str, seen: str) -> bool:
        keys = self._keys(session, "journal", f"aside:{seen}", "asides")
        return bool(await self._eval(_RENAME, keys, seen))

    async def _delete(self, session: str, tombstone: str) -> None:
        keys = [self._grave(session), *self._keys(session, "journal", "id", "asides")]
        milliseconds = int(tombstone_seconds() * 1000)
        await self._eval(_DELETE, keys, tombstone, max(1, milliseconds))

    async def _sessions(self) -> list[str]:
        prefix = re.sub(r"([*?\[\]\\])", r"\\\1", self.prefix)

        async def read(redis: Redis) -> list[Any]:
            keys = {key async for key in redis.scan_iter(match=f"{prefix}:{{*}}:id", count=1000)}
            return [name for key in keys if (name := await redis.get(key))]

        return await self._run(read)

    def _grave(self, session: str) -> str:
        return f"{self.prefix}:deleted:{tombstone_name(session)}"

    def _keys(self, session: str, *parts: str) -> list[str]:
        return [f"{self.prefix}:{{{session}}}:{part}" for part in parts]

    async def _eval(self, script: str, keys: Sequence[str], *values: str | int) -> Any:
        return await self._run(lambda redis: redis.eval(script, len(keys), *keys, *values))

    async def _lease(self, session: str, token: str) -> bool:
        milliseconds = int(LEASE_SECONDS * 1000)
        return bool(await self._eval(_LEASE, self._keys(session, "lease"), token, milliseconds))

    async def _release(self, session: str, token: str) -> None:
        await self._eval(_RELEASE, self._keys(session, "lease"), token)

    # The client -----------------------------------------------------------------------------------

    def _connect(self) -> Redis:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # We try again ourselves: a script that has run must not count as one that has not.
        return Redis.from_url(
            self.url,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=self.timeout,
            socket_timeout=self.timeout,
            **_driver_version(),
        )

    def _is_passing(self, error: Exception) -> bool | None:
        from redis import exceptions

        away = (exceptions.ConnectionError, exceptions.BusyLoadingError, exceptions.TimeoutError)
        if isinstance(error, exceptions.AuthenticationError):
            return False
        if isinstance(error, (*away, OSError)):
            return True
        return False if isinstance(error, exceptions.RedisError) else None

    async def _attempt(self, work: Callable[[Redis], Awaitable[T]]) -> T:
        with fail_after(self.timeout):
            return await work(self._client.get())


def _driver_version() -> dict[str, Any]:
    """The driver's version, which it would else read from the disk for each connection."""
    import redis

    try:
        from redis.driver_info import DriverInfo
    except ImportError:
        return {"lib_version": redis.__version__}
    return {"driver_info": DriverInfo(lib_version=redis.__version__)}
