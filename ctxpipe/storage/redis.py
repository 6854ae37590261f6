"""Journals in Redis, for services of several workers."""

from __future__ import annotations

import asyncio
import re
import time
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from anyio import move_on_after

from .._threads.threads import PerLoop
from ..errors import SettingsError, StorageError
from ..settings import POSITIVE, TEXT, check_extra, check_settings
from .generations import DAY_SECONDS, tombstone_name
from .shared_journals import LEASE_SECONDS, Contents, NewEntry, ServerJournal, without_secret
from .waiting import PROMPT_SECONDS, note_progress

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

# A journal is a list: its name, which is the token of its first entry, then "<token> <entry>" for
# each entry. Redis runs one script at a time, so the length of the list decides which of two
# writers was first.
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
# Returns at most ARGV[3] bytes of the items from index ARGV[1] on, beginning at byte ARGV[2] of the
# first one. The first value is 0 at the end of the list, 1 if more items follow, and 2 if the last
# item is incomplete.
_ENTRIES = """
local journal = redis.call('lindex', KEYS[1], 0)
local tombstone = redis.call('get', KEYS[2])
local size = redis.call('llen', KEYS[1])
local index = tonumber(ARGV[1])
local offset = tonumber(ARGV[2])
local bytes_left = tonumber(ARGV[3])
local parts = {}
while index < size and bytes_left > 0 do
    local item = redis.call('lindex', KEYS[1], index)
    local part = string.sub(item, offset + 1, offset + bytes_left)
    parts[#parts + 1] = part
    bytes_left = bytes_left - #part
    if offset + #part < #item then
        return {2, journal, parts, tombstone}
    end
    index = index + 1
    offset = 0
end
return {index < size and 1 or 0, journal, parts, tombstone}
"""
_AT_END = 0
_INSIDE_ITEM = 2
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
_LARGEST_PAGE = 1 << 22  # bytes
_CLOSE_SECONDS = 1.0
_SENTINEL_SECONDS = 0.5  # limit for one sentinel, then the next one is tried
# First words of errors with which a server refuses a request for the moment.
_TEMPORARY_ERRORS = (
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "BUSY",
)
_SENTINEL_FORM = "redis+sentinel://HOST:26379,HOST:26379/SERVICE/0"


@dataclass(eq=False, repr=False)
class RedisJournal(ServerJournal):
    """Journals of sessions in the Redis at *url*, each a list.

    *url* is that of a server, of a node of a cluster, or ``redis+sentinel://HOST,HOST/SERVICE`` for
    sentinels. All keys of a session are in one slot of a cluster, and begin with *prefix*. Redis
    must not lose or evict keys: set ``appendonly yes`` and ``maxmemory-policy noeviction``. With
    *max_age* a journal is deleted that many seconds after its last entry. *texts* is the storage of
    the stages: texts in it are not repeated in the journal. *redact* hides secrets, by default that
    of *texts*.

    A lease is a key that expires. Connections are closed with their event loop. *timeout* is the
    number of seconds that a turn waits for this Redis, by default STORE_SECONDS; *patience* is an
    older name of the setting.

    Needs the extra ``ctxpipe[redis]``. Raises SettingsError for invalid settings, among them a
    *url* that cannot be parsed, and if the extra is missing.
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
        self._client: PerLoop[_ClientHolder] = PerLoop(_ClientHolder, _ClientHolder.close)
        self._is_cluster: bool | None = None  # None until the server has reported it

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""
        await self._availability.stop()
        await self._client.get().close()

    # Operations of a database ---------------------------------------------------------------------

    async def _append(self, new: NewEntry) -> str | None:
        """Write *new*; return the name of the journal, or None if nothing was written.

        Nothing is written if another entry has its number, or if the journal was replaced or
        deleted since it was read. Raises StorageError.
        """
        keys: list[str | bytes] = [*self._keys(new.session, "journal", "id")]
        keys.append(self._tombstone_key(new.session))
        milliseconds = int((self.max_age or 0) * 1000)
        tombstone = "-" if new.tombstone is None else new.tombstone
        entry = (new.number, new.entry, new.token, new.last_journal or "", milliseconds, new.name)
        size = len(new.entry)
        answer = await self._eval(_APPEND, keys, *entry, tombstone, size=size)
        return answer.decode() if answer else None

    async def _entries(self, session: str, start: int) -> Contents:
        return await self._run(lambda redis: self._read(redis, session, start + 1))

    async def _read(self, redis: Any, session: str, index: int) -> Contents:
        """Read the journal from item *index* on, page by page, so that progress is visible."""
        keys = [*self._keys(session, "journal"), self._tombstone_key(session)]
        page_bytes = _FIRST_PAGE
        first_journal = None
        old_tombstone = None
        if not self._is_cluster:
            old_tombstone = await redis.get(self._old_tombstone_key(session))
        items: list[bytes] = []
        partial = b""
        while True:
            began = time.monotonic()
            page = await redis.eval(
                _ENTRIES, len(keys), *keys, index + len(items), len(partial), page_bytes
            )
            note_progress()
            position, journal, parts, tombstone = page
            is_first_page = not items and not partial
            if not is_first_page and journal != first_journal:
                # It was set aside or deleted meanwhile: read from the beginning.
                items = []
                partial = b""
                continue
            first_journal = journal
            if parts:
                parts[0] = partial + parts[0]
                partial = parts.pop() if position == _INSIDE_ITEM else b""
                items += parts
            if position == _AT_END:
                break
            if time.monotonic() - began < PROMPT_SECONDS:
                page_bytes = min(2 * page_bytes, _LARGEST_PAGE)
        entries = [item.decode().partition(" ")[2] for item in items]
        tombstone = tombstone or old_tombstone
        return journal and journal.decode(), entries, tombstone and tombstone.decode()

    async def _set_aside(self, session: str, journal: str) -> bool:
        """Rename the journal if its name is *journal*; return False if it is not."""
        keys = self._keys(session, "journal", f"aside:{journal}", "asides")
        return bool(await self._eval(_RENAME, keys, journal))

    async def _delete(self, session: str, tombstone: str) -> None:
        """Delete all journals of *session*, and store the *tombstone* for *tombstone_days*.

        Raises StorageError.
        """
        keys: list[str | bytes] = [self._tombstone_key(session)]
        keys += self._keys(session, "journal", "id", "asides")
        milliseconds = int(self.tombstone_days * DAY_SECONDS * 1000)
        await self._eval(_DELETE, keys, tombstone, max(1, milliseconds))

    async def _sessions(self) -> list[str]:
        """Return the id of each session with a journal, as JSON, in any order.

        Raises StorageError.
        """
        prefix = re.sub(r"([*?\[\]\\])", r"\\\1", self.prefix)

        async def read(redis: Redis) -> list[Any]:
            """Scan the server for the keys of journals; return the ids that they contain."""
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

    def _tombstone_key(self, session: str) -> bytes:
        """Return the key of the tombstone: in the slot of the journal, named by a digest."""
        [journal] = self._keys(session, "journal")
        name = tombstone_name(session).encode()
        return b"%s:deleted:{%s}:%s" % (self.prefix.encode(), _tag_in_slot_of(journal), name)

    def _old_tombstone_key(self, session: str) -> str:
        """Return the key that older versions of ctxpipe use, which may be in another slot."""
        return f"{self.prefix}:deleted:{tombstone_name(session)}"

    def _keys(self, session: str, *parts: str) -> list[str]:
        return [f"{self.prefix}:{{{session}}}:{part}" for part in parts]

    async def _eval(
        self, script: str, keys: Sequence[str | bytes], *values: str | int, size: int = 0
    ) -> Any:
        """Run the Lua *script* on the server; return its answer.

        *size* is the number of bytes to send, for the time limit. Raises StorageError.
        """
        return await self._run(
            lambda redis: redis.eval(script, len(keys), *keys, *values), size=size
        )

    async def _lease(self, session: str, token: str) -> bool:
        """Acquire or renew the lease of *session* for *token*; return False if it is taken."""
        milliseconds = int(LEASE_SECONDS * 1000)
        return bool(await self._eval(_LEASE, self._keys(session, "lease"), token, milliseconds))

    async def _release(self, session: str, token: str) -> None:
        await self._eval(_RELEASE, self._keys(session, "lease"), token)

    # The client -----------------------------------------------------------------------------------

    async def _open(self, holder: _ClientHolder) -> _SharedClient:
        """Return the client of this event loop: a cluster needs a client of another class."""
        async with holder.lock:
            if holder.current is None:
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
                holder.current = _SharedClient(client)
            return holder.current

    def _new_client(self) -> Any:
        """Return a new client for one server or the master of the sentinels; not for a cluster.

        It connects at its first command. The driver repeats no command.
        """
        from redis.asyncio import Redis

        if self._sentinels is not None:
            return self._sentinels.new_client(self._options(retries=0))
        # No retries by the driver: `_repeat` knows whether a call may be repeated.
        return Redis.from_url(self.url, **self._options(retries=0))

    def _new_cluster_client(self) -> Any:
        """Return a new client for a cluster, which repeats a failed command at most twice."""
        from redis.asyncio import RedisCluster

        # With its second attempt the driver finds the node that has replaced a failed one.
        return RedisCluster.from_url(self.url, **self._options(retries=2))

    def _options(self, *, retries: int) -> dict[str, Any]:
        """Return the options of a client: *retries* by the driver, no time limits."""
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return {
            "retry": Retry(NoBackoff(), retries),
            # `Availability` limits the call as a whole, from the last progress on.
            "socket_connect_timeout": None,
            "socket_timeout": None,
            "socket_keepalive": True,
            **_driver_version(),
        }

    def _is_temporary(self, error: Exception) -> bool | None:
        """Return True if the same call may succeed later; None if it is no error of the driver.

        Refused credentials are not temporary. Errors of the connection and of a changing cluster
        are.
        """
        from redis import exceptions

        if isinstance(error, StorageError):
            return None
        temporary_errors = (
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
        if isinstance(error, (*temporary_errors, exceptions.RedisClusterException, OSError)):
            return True
        if isinstance(error, exceptions.RedisError):
            text = str(error)[:400]  # an older server quotes the error after the script's name
            return any(f"{word} " in text for word in _TEMPORARY_ERRORS)
        return None

    def _explain(self, error: Exception) -> str:
        """Describe *error* by its class and text, without arguments and password."""
        text = str(error).partition(", with args")[0]
        return f"{super()._explain(error)}: {without_secret(text, _password_in(self.url))}"

    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Call *work* once with the client of this event loop; return its result.

        Errors are raised unchanged. After a temporary one the client is closed.
        """
        holder = self._client.get()
        shared: _SharedClient | None = None
        try:
            shared = await self._open(holder)
            shared.users += 1
            return await work(shared.client)
        except Exception as error:
            if self._is_temporary(error):
                # Connect again: the server may have another address or another role.
                self._is_cluster = None
                if shared is not None:
                    shared.is_replaced = True
                    if holder.current is shared:
                        holder.current = None
            raise
        finally:
            if shared is not None:
                shared.users -= 1
                # Not earlier: a cluster's client opens connections again for its other users.
                if shared.is_replaced and not shared.users:
                    await _close(shared.client)

    async def _ask_nothing(self, connection: Any) -> None:
        """Run a script that tries to write, which fails on a server that accepts no writes."""
        [key] = self._keys("trial", "trial")
        await connection.eval(_TRIAL, 1, key)


_SLOTS = 16_384


def _tag_in_slot_of(key: str) -> bytes:
    """Return a hash tag of two bytes in the slot of *key*, which does not reveal the key.

    A cluster hashes the text in the braces with a CRC of 16 bits, of which it uses 14. The CRC of
    two bytes can be computed backwards, to the bytes.
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
        two_bytes = register.to_bytes(2, "big")
        if not set(two_bytes) & set(b"{}"):
            break
    return two_bytes


@dataclass(eq=False)
class _SharedClient:
    """Client with the number of its calls; one that is replaced is closed after the last call."""

    client: Any
    users: int = 0
    is_replaced: bool = False


class _ClientHolder:
    """Client of one event loop, created at first use."""

    def __init__(self) -> None:
        self.current: _SharedClient | None = None
        self.lock: asyncio.Lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        shared = self.current
        self.current = None
        if shared is not None:
            shared.is_replaced = True
            await _close(shared.client)


async def _close(client: Any) -> None:
    """Close the connections of *client* and to sentinels, also if the caller is cancelled."""
    with move_on_after(_CLOSE_SECONDS, shield=True):
        await client.aclose()
        nodes = getattr(client, "nodes_manager", None)
        if nodes is not None:
            # `aclose` of a cluster's client closes nothing before it has read the topology.
            await nodes.aclose()
            await nodes.aclose("startup_nodes")
        manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
        for sentinel in getattr(manager, "sentinels", ()):
            await sentinel.aclose()


class _Sentinels(NamedTuple):
    """Parts of a URL of sentinels."""

    hosts: list[tuple[str, int]]
    service: str
    options: dict[str, Any]
    sentinel_options: dict[str, Any]

    def new_client(self, options: dict[str, Any]) -> Any:
        """Return a client of the primary of the service, which the sentinels name."""
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
    """Parse *url*; return its parts if it is of sentinels, else None. Raises SettingsError."""
    from redis.asyncio.connection import parse_url

    scheme, _, rest = url.partition("://")
    try:
        if scheme in ("redis+sentinel", "rediss+sentinel"):
            return _read_sentinels(scheme, rest)
        parse_url(url)
    except ValueError:
        # The reason is left out, because it may quote the password.
        raise SettingsError(
            "url is no URL of Redis; give one such as 'redis://:PASSWORD@HOST:6379/0', with "
            f"%-escapes for / : @ and # in a password, or {_SENTINEL_FORM}"
        ) from None
    return None


def _read_sentinels(scheme: str, rest: str) -> _Sentinels:
    """Parse the *rest* of a URL of sentinels after its scheme. Raises ValueError."""
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
    options: dict[str, Any] = {"db": int(database or 0)}
    sentinel_options: dict[str, Any] = {}
    if scheme.startswith("rediss"):
        options["ssl"] = True
        sentinel_options["ssl"] = True
    user, _, password = credentials.partition(":")
    if user:
        options["username"] = unquote(user)
    if password:
        options["password"] = unquote(password)
    query = parse_qs(parts.query, strict_parsing=bool(parts.query))
    if "sentinel_password" in query:
        sentinel_options["password"] = query["sentinel_password"][0]
    return _Sentinels(hosts, unquote(service), options, sentinel_options)


def _password_in(url: str) -> str | None:
    """Return the password in *url*, decoded; None if it has none."""
    password = urlsplit(url.replace("+sentinel", "", 1)).password
    return unquote(password) if password else None


async def _has_cluster(client: Any) -> bool:
    """Return True if the server reports that it is a node of a cluster.

    Returns False if it does not permit the question. Raises the driver's error if it cannot be
    reached, or has no database of the number in the URL.
    """
    from redis import exceptions

    try:
        info = await client.info("cluster")
    except exceptions.ResponseError as error:
        if "DB index" in str(error):
            raise
        return False  # the user may not run INFO, or the server has no clusters
    return bool(info.get("cluster_enabled"))


def _driver_version() -> dict[str, Any]:
    """Return the driver's version, which it otherwise reads from the disk for each connection."""
    import redis

    try:
        from redis.driver_info import DriverInfo
    except ImportError:
        return {"lib_version": redis.__version__}
    return {"driver_info": DriverInfo(lib_version=redis.__version__)}
