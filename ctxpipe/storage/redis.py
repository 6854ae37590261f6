"""Journals in Redis, for the workers of a service."""

from __future__ import annotations

import asyncio
import re
import time
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from .._threads.threads import PerLoop
from ..errors import SettingsError, StorageError
from ..settings import POSITIVE, TEXT, check_extra, check_settings
from .generations import tombstone_name, tombstone_seconds
from .shared_journals import LEASE_SECONDS, Contents, NewEntry, ServerJournal, without_secret
from .waiting import PROMPT_SECONDS, note_progress

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
# A page of the list: at most ARGV[3] bytes of its items from number ARGV[1] on, of that one from
# byte ARGV[2] on. The first value is 2 when the last item is not whole, and 1 when others follow.
_ENTRIES = """
local journal = redis.call('lindex', KEYS[1], 0)
local tombstone = redis.call('get', KEYS[2])
local size = redis.call('llen', KEYS[1])
local index, offset, room = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local parts = {}
while index < size and room > 0 do
    local item = redis.call('lindex', KEYS[1], index)
    local part = string.sub(item, offset + 1, offset + room)
    parts[#parts + 1] = part
    room = room - #part
    if offset + #part < #item then
        return {2, journal, parts, tombstone}
    end
    index, offset = index + 1, 0
end
return {index < size and 1 or 0, journal, parts, tombstone}
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
_TRIAL = "redis.call('set', KEYS[1], '', 'px', 1)"
_RELEASE = """
if redis.call('get', KEYS[1]) == ARGV[1] then
    redis.call('del', KEYS[1])
end
"""


_FIRST_PAGE = 1 << 16  # bytes
_LARGEST_PAGE = 1 << 22
_SENTINEL_SECONDS = 0.5  # then the next sentinel is asked
# What the server says as long as it is not the one to ask, is not ready, or asks to come again.
_NOT_NOW = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY")
_SENTINEL_FORM = "redis+sentinel://HOST:26379,HOST:26379/SERVICE/0"


@dataclass(eq=False, repr=False)
class RedisJournal(ServerJournal):
    """The journals of sessions in the Redis at *url*, each a list.

    *url* leads to a server, to a node of a cluster, or with ``redis+sentinel://HOST,HOST/SERVICE``
    to sentinels. All keys of a session are in one slot. Redis must keep them: with ``appendonly
    yes`` and ``maxmemory-policy noeviction``. With *max_age* a journal that has not been written to
    for so many seconds is deleted. *prefix* begins all keys. *texts* is the storage that the stages
    write to: what is there is not repeated in the journal. *redact* hides secrets, by default as
    *texts* does.

    A lease is a key that expires. Connections are closed with their event loop. *timeout* is how
    many seconds a turn waits for this Redis, by default STORE_SECONDS; *patience* is an older name
    for it.

    Needs the extra ``ctxpipe[redis]``. Raises SettingsError for invalid settings, also a *url* that
    cannot be read, and where the extra is missing.
    """

    _server = "Redis"

    url: str = field(repr=False)  # it may hold a password
    _: KW_ONLY
    prefix: str = "ctxpipe"
    max_age: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, url=TEXT, prefix=TEXT, max_age=POSITIVE.optional)
        check_extra("RedisJournal", "redis", "redis")
        self._sentinels = _read_url(self.url)
        super().__post_init__()
        self._client: PerLoop[_Client] = PerLoop(_Client, _Client.close)
        self._is_cluster: bool | None = None  # None until the server was asked

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""
        await self._availability.stop()
        await self._client.get().close()

    # What a database does -------------------------------------------------------------------------

    async def _append(self, new: NewEntry) -> str | None:
        keys: list[str | bytes] = [*self._keys(new.session, "journal", "id")]
        keys.append(self._grave(new.session))
        milliseconds = int((self.max_age or 0) * 1000)
        tombstone = "-" if new.tombstone is None else new.tombstone
        entry = (new.number, new.entry, new.token, new.seen or "", milliseconds, new.name)
        size = len(new.entry)
        answer = await self._eval(_APPEND, keys, *entry, tombstone, size=size)
        return answer.decode() if answer else None

    async def _entries(self, session: str, start: int) -> Contents:
        return await self._run(lambda redis: self._read(redis, session, start + 1))

    async def _read(self, redis: Any, session: str, index: int) -> Contents:
        """The journal from item *index* on: page by page, so that it is seen to arrive."""
        keys = [*self._keys(session, "journal"), self._grave(session)]
        page_bytes = _FIRST_PAGE
        first_journal = None
        old_tombstone = None
        if not self._is_cluster:
            old_tombstone = await redis.get(self._old_grave(session))
        items: list[bytes] = []
        partial = b""
        while True:
            began = time.monotonic()
            page = await redis.eval(
                _ENTRIES, len(keys), *keys, index + len(items), len(partial), page_bytes
            )
            note_progress()
            what_follows, journal, parts, tombstone = page
            is_first_page = not items and not partial
            if not is_first_page and journal != first_journal:
                items, partial = [], b""  # it was set aside or deleted meanwhile: read it again
                continue
            first_journal = journal
            if parts:
                parts[0] = partial + parts[0]
                partial = parts.pop() if what_follows == 2 else b""
                items += parts
            if what_follows == 0:
                break
            if time.monotonic() - began < PROMPT_SECONDS:
                page_bytes = min(2 * page_bytes, _LARGEST_PAGE)
        entries = [item.decode().partition(" ")[2] for item in items]
        tombstone = tombstone or old_tombstone
        return journal and journal.decode(), entries, tombstone and tombstone.decode()

    async def _set_aside(self, session: str, seen: str) -> bool:
        keys = self._keys(session, "journal", f"aside:{seen}", "asides")
        return bool(await self._eval(_RENAME, keys, seen))

    async def _delete(self, session: str, tombstone: str) -> None:
        keys: list[str | bytes] = [self._grave(session)]
        keys += self._keys(session, "journal", "id", "asides")
        milliseconds = int(tombstone_seconds() * 1000)
        await self._eval(_DELETE, keys, tombstone, max(1, milliseconds))

    async def _sessions(self) -> list[str]:
        prefix = re.sub(r"([*?\[\]\\])", r"\\\1", self.prefix)

        async def read(redis: Redis) -> list[Any]:
            keys: set[Any] = set()
            async for key in redis.scan_iter(match=f"{prefix}:{{*}}:id", count=1000):
                keys.add(key)
                note_progress()
            names: list[Any] = []
            for key in keys:
                name = await redis.get(key)
                note_progress()
                if name:
                    names.append(name)
            return names

        return await self._run(read)

    def _grave(self, session: str) -> bytes:
        """Where the tombstone is: beside the journal in a cluster, and named by a digest."""
        [journal] = self._keys(session, "journal")
        name = tombstone_name(session).encode()
        return b"%s:deleted:{%s}:%s" % (self.prefix.encode(), _tag_beside(journal), name)

    def _old_grave(self, session: str) -> str:
        """Where older versions of ctxpipe have left the tombstone, which a cluster refuses."""
        return f"{self.prefix}:deleted:{tombstone_name(session)}"

    def _keys(self, session: str, *parts: str) -> list[str]:
        return [f"{self.prefix}:{{{session}}}:{part}" for part in parts]

    async def _eval(
        self, script: str, keys: Sequence[str | bytes], *values: str | int, size: int = 0
    ) -> Any:
        return await self._run(
            lambda redis: redis.eval(script, len(keys), *keys, *values), size=size
        )

    async def _lease(self, session: str, token: str) -> bool:
        milliseconds = int(LEASE_SECONDS * 1000)
        return bool(await self._eval(_LEASE, self._keys(session, "lease"), token, milliseconds))

    async def _release(self, session: str, token: str) -> None:
        await self._eval(_RELEASE, self._keys(session, "lease"), token)

    # The client -----------------------------------------------------------------------------------

    async def _open(self) -> Any:
        """The client of this event loop: a cluster needs another one than a server."""
        held = self._client.get()
        async with held.lock:
            if held.client is None:
                client = self._new_client()
                try:
                    if self._is_cluster is None:
                        self._is_cluster = await _has_cluster(client)
                except BaseException:
                    await _close(client)
                    raise
                if self._is_cluster and self._sentinels is None:
                    await _close(client)
                    client = self._new_cluster_client()
                held.client = client
            return held.client

    def _new_client(self) -> Any:
        from redis.asyncio import Redis

        if self._sentinels is not None:
            return self._sentinels.new_client(self._options(0))
        # We try again ourselves: a script that has run must not count as one that has not.
        return Redis.from_url(self.url, **self._options(0))

    def _new_cluster_client(self) -> Any:
        from redis.asyncio import RedisCluster

        # It finds out in its second try which node has taken the place of one that is gone.
        return RedisCluster.from_url(self.url, **self._options(2))

    def _options(self, retries: int) -> dict[str, Any]:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return {
            "retry": Retry(NoBackoff(), retries),
            # The call as a whole has a limit, which counts from what arrived last.
            "socket_connect_timeout": None,
            "socket_timeout": None,
            "socket_keepalive": True,
            **_driver_version(),
        }

    def _is_passing(self, error: Exception) -> bool | None:
        from redis import exceptions

        if isinstance(error, StorageError):
            return None
        away = (
            exceptions.AskError,
            exceptions.ClusterCrossSlotError,
            exceptions.ClusterDownError,
            exceptions.ConnectionError,
            exceptions.ReadOnlyError,
            exceptions.TimeoutError,
            exceptions.TryAgainError,
        )
        if isinstance(error, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
            return False
        if isinstance(error, (*away, exceptions.RedisClusterException, OSError)):
            return True
        if isinstance(error, exceptions.RedisError):
            text = str(error)[:400]  # an older server names what a script ran into
            return any(f"{word} " in text for word in _NOT_NOW)
        return None

    def _explain(self, error: Exception) -> str:
        text = str(error).partition(", with args")[0]
        return f"{super()._explain(error)}: {without_secret(text, _password_in(self.url))}"

    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await work(await self._open())
        except Exception as error:
            if self._is_passing(error):
                # Where it leads is decided anew: the server may have another place, or a new role.
                self._is_cluster = None
                await self._client.get().close()
            raise

    async def _ask_nothing(self, connection: Any) -> None:
        [key] = self._keys("trial", "trial")
        await connection.eval(_TRIAL, 1, key)


_SLOTS = 16_384


def _tag_beside(key: str) -> bytes:
    """A hash tag, of two bytes, that a cluster keeps where it keeps *key*, and that says no more.

    A cluster hashes what is in the braces with a CRC of 16 bits, of which it takes 14. That of two
    bytes can be run backwards, to the bytes.
    """
    whole = key.encode()
    tag = whole.partition(b"{")[2].partition(b"}")[0] or whole
    slot = crc_hqx(tag, 0) % _SLOTS
    for remainder in range(slot, 1 << 16, _SLOTS):
        register = remainder
        for _ in range(16):
            if register & 1:
                register = (register ^ 0x1021) >> 1 | 0x8000
            else:
                register >>= 1
        found = register.to_bytes(2, "big")
        if not set(found) & set(b"{}"):
            break
    return found


class _Client:
    """The client of one event loop, once it is needed."""

    def __init__(self) -> None:
        self.client: Any = None
        self.lock: asyncio.Lock = asyncio.Lock()

    async def close(self) -> None:
        """Close its connections; the next call opens new ones."""
        client = self.client
        self.client = None
        if client is not None:
            await _close(client)


async def _close(client: Any) -> None:
    """Close the connections of *client*, and those to sentinels."""
    await client.aclose()
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for sentinel in getattr(manager, "sentinels", ()):
        await sentinel.aclose()


class _Sentinels(NamedTuple):
    """What a URL of sentinels says."""

    hosts: list[tuple[str, int]]
    service: str
    options: dict[str, Any]
    sentinel_options: dict[str, Any]

    def new_client(self, options: dict[str, Any]) -> Any:
        """A client of the server that the sentinels call the primary of the service."""
        from redis.asyncio.sentinel import Sentinel

        limits = {
            "socket_connect_timeout": _SENTINEL_SECONDS,
            "socket_timeout": _SENTINEL_SECONDS,
        }
        sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
            self.hosts, sentinel_kwargs={**options, **self.sentinel_options, **limits}, **options
        )
        return sentinel.master_for(self.service, **self.options)


def _read_url(url: str) -> _Sentinels | None:
    """What a *url* of sentinels says, None for any other. Raises SettingsError for one of none."""
    from redis.asyncio.connection import parse_url

    scheme, _, rest = url.partition("://")
    try:
        if scheme in ("redis+sentinel", "rediss+sentinel"):
            return _read_sentinels(scheme, rest)
        parse_url(url)
    except ValueError:
        # Without the reason: it may quote the password.
        raise SettingsError(
            "url is no URL of Redis; give one such as 'redis://:PASSWORD@HOST:6379/0', with "
            f"%-escapes for / : @ and # in a password, or {_SENTINEL_FORM}"
        ) from None
    return None


def _read_sentinels(scheme: str, rest: str) -> _Sentinels:
    """What a URL of sentinels says. Raises ValueError."""
    parts = urlsplit(f"x://{rest}")
    credentials, _, places = parts.netloc.rpartition("@")
    hosts: list[tuple[str, int]] = []
    for place in places.split(","):
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "26379")
        if not host:
            raise ValueError("no host")
        hosts.append((host.strip("[]"), int(port)))
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("no service")
    options: dict[str, Any] = {"db": int(database or 0), "ssl": scheme.startswith("rediss")}
    if not options["ssl"]:
        del options["ssl"]
    user, _, password = credentials.partition(":")
    if user:
        options["username"] = unquote(user)
    if password:
        options["password"] = unquote(password)
    sentinel_options: dict[str, Any] = {}
    query = parse_qs(parts.query, strict_parsing=bool(parts.query))
    if "sentinel_password" in query:
        sentinel_options["password"] = query["sentinel_password"][0]
    if options.get("ssl"):
        sentinel_options["ssl"] = True
    return _Sentinels(hosts, unquote(service), options, sentinel_options)


def _password_in(url: str) -> str | None:
    password = urlsplit(url.replace("+sentinel", "", 1)).password
    return unquote(password) if password else None


async def _has_cluster(client: Any) -> bool:
    """Whether the server is a node of a cluster."""
    from redis.exceptions import ConnectionError as Away
    from redis.exceptions import ResponseError

    try:
        found = await client.info("cluster")
    except Away:
        raise
    except ResponseError as error:
        if "DB index" in str(error):
            raise
        return False  # it may not be asked, or has no clusters
    return bool(found.get("cluster_enabled"))


def _driver_version() -> dict[str, Any]:
    """The driver's version, which it would else read from the disk for each connection."""
    import redis

    try:
        from redis.driver_info import DriverInfo
    except ImportError:
        return {"lib_version": redis.__version__}
    return {"driver_info": DriverInfo(lib_version=redis.__version__)}
