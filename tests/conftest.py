"""Settings and fixtures of all tests.

asyncio under anyio's plugin, in debug mode, no blocking call, and no other machine.
"""

from __future__ import annotations

import asyncio.base_events
import asyncio.constants
import gc
import ipaddress
import logging
import os
import platform
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

# At once: pytest rewrites it, which Python 3.11 may refuse while another thread is parsing.
import hypothesis.internal.conjecture.optimiser  # noqa: F401
import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, Phase, settings

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in a shell's background job: whoever is started inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Little of what is made while ten thousand tests are collected is garbage; to look for it would be
# a third of that time.
gc.disable()

# What tests, and programs that they start, leave in the folder for temporary files goes with the
# run, but for pytest's own folders. The processes of xdist have those of the one that starts them.
IS_FIRST = "PYTEST_XDIST_WORKER" not in os.environ
if IS_FIRST:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="ctxpipe-tests-")
    os.chmod(tempfile.tempdir, 0o711)  # servers of another user have their folders in it


def pytest_unconfigure():
    if IS_FIRST:
        shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


# In debug mode asyncio notes where each callback, future and coroutine was made, for its messages.
# That would be a fifth of the whole run: only a coroutine keeps the line that made it.
traceback.walk_stack = lambda *_: iter(())
asyncio.constants.DEBUG_STACK_DEPTH = 1  # type: ignore[misc]

# In debug mode asyncio also asks of each callback whether it is a coroutine function, which takes
# three per cent of the run. One that is scheduled by mistake fails its test anyway: Python warns
# that it was never awaited.
asyncio.base_events.BaseEventLoop._check_callback = lambda *_: None  # type: ignore[attr-defined]

# And in debug mode it warns of each step that took long, which depends on the machine alone.
logging.getLogger("asyncio").addFilter(lambda record: " took " not in record.getMessage())

# What older SDKs ask with their first request: Python starts `uname` for it, once.
platform.platform()

# No test speaks TLS; the certificates of a client take longer to read than its requests.
ssl.SSLContext.load_verify_locations = lambda *_, **__: None  # type: ignore[method-assign]

EXAMPLES_BY_DAY = 20
settings.register_profile(
    "ci", max_examples=EXAMPLES_BY_DAY, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # for `make mutants`: that a test fails is all it asks
    "mutants", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="module")
def what_is_there_stays() -> None:
    """Freeze what is imported by now: no later collection of garbage looks through it."""
    gc.collect()
    gc.freeze()


def is_here(host: object) -> bool:
    """Return True if *host* is this machine."""
    if host in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(os.fsdecode(host).partition("%")[0])  # type: ignore[arg-type]
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def stay_here(connect: Callable[..., Any]) -> Callable[..., Any]:
    """*connect*, but to this machine only.

    A datagram socket sends nothing by it: so one asks for one's address.
    """

    def connected(self: socket.socket, address: Any) -> Any:
        is_stream = (
            self.family in (socket.AF_INET, socket.AF_INET6) and self.type & socket.SOCK_STREAM
        )
        assert not is_stream or is_here(address[0]), (
            f"a test asked for {address}, which is not this machine"
        )
        return connect(self, address)

    return connected


# For the whole run, whoever opens the connection: ctxpipe, the SDK, or a test.
socket.socket.connect = stay_here(socket.socket.connect)  # type: ignore[method-assign]
socket.socket.connect_ex = stay_here(socket.socket.connect_ex)  # type: ignore[method-assign]


def sendable(value: Any) -> Any:
    """*value* with every lone surrogate written out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: sendable(held) for key, held in value.items()}
    return type(value)(map(sendable, value)) if isinstance(value, list | tuple) else value


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A property that fails shows what it failed for.

    A process of xdist must be able to hand that on.
    """
    return sendable((yield))


# How many processes ------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, optionalhook=True)  # adapters are tested without pytest-xdist
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Return one more than cores: a third of the time a test waits, for a disk or a socket.

    Each process collects all tests, which takes six seconds.
    """
    return (yield) + 1


# The budget -------------------------------------------------------------------------------------

BUDGET_SECONDS = 2  # of a property for EXAMPLES_BY_DAY examples, so a hundred at night
SLOW = tomllib.loads(Path(__file__).with_name("slow.toml").read_text("utf-8"))
ENDED = pytest.StashKey[float]()


def pytest_collection_modifyitems(items: list[pytest.Item]):
    """Files with a slow one come first: the last ones are short, and all processes end at once.

    They come whole, since what a fixture makes for a file would be made twice otherwise.
    """
    files = {name.partition("::")[0] for name in SLOW}
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in files)


def budget_seconds(item: pytest.Item) -> float:
    """Return the seconds of a processor that *item* may take without a reason in `slow.toml`."""
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if not is_property:
        return BUDGET_SECONDS
    return BUDGET_SECONDS * max(1, settings().max_examples / EXAMPLES_BY_DAY)


def processor_seconds() -> float:
    """Return the seconds of a processor that this process and its ended children have used."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session):
    gc.freeze()  # else each of the next collections would look through the tests, too
    gc.enable()
    session.config.stash[ENDED] = processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A report of the end holds what the test took, with the fixtures that it was first to need."""
    report = yield
    if call.when == "teardown":
        before, now = item.config.stash[ENDED], processor_seconds()
        item.config.stash[ENDED] = now
        seconds = now - before
        report.user_properties.append(("processor_seconds", seconds))
        report.user_properties.append(("is_over_budget", seconds > budget_seconds(item)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter):
    """Name the tests above the budget that `slow.toml` gives no reason for."""
    slow: dict[str, float] = {}
    for report in terminalreporter.getreports(""):
        name = report.nodeid.partition("[")[0]
        properties = dict(report.user_properties)
        if properties.get("is_over_budget") and name not in SLOW:
            slow[name] = max(properties["processor_seconds"], slow.get(name, 0))
    for name, seconds in sorted(slow.items()):
        line = f"{seconds:.1f} s of a processor, with no reason in tests/slow.toml: {name}"
        terminalreporter.write_line(line)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"debug": True}


@pytest.fixture(autouse=True, scope="module")
def nothing_blocks_the_loop() -> Iterator[None]:
    """A call of ctxpipe that would block the event loop is an error."""
    with blockbuster_ctx("ctxpipe", excluded_modules=["ctxpipe.testing"]) as blocking:
        for harmless in (
            "os.path.abspath",
            "os.getcwd",
        ):  # they ask the process for its folder, and no disk
            blocking.functions[harmless].deactivate()
        for function in blocking.functions.values():  # an event loop of its own, with one task
            function.can_block_in("ctxpipe/lab/batch.py", "replay_file")
        # That the folder exists is asked once, where the settings are made.
        stat = blocking.functions["os.stat"]
        stat.can_block_in("ctxpipe/stages/compact/restore.py", "__post_init__")
        for name in ("os.stat", "os.path.islink", "os.access"):
            blocking.functions[name].can_block_in("ctxpipe/storage/folders.py", "check_root")
            blocking.functions[name].can_block_in("ctxpipe/storage/sqlite.py", "__post_init__")
        # Of the SDKs' clients, where no variable of the environment names the certificates.
        stat.can_block_in("ssl.py", "get_default_verify_paths")
        stat.can_block_in("httpcore2/_ssl.py", "default_ssl_context")
        # An older SDK asks once in a process on what system it runs.
        for asking in (stat, blocking.functions["io.TextIOWrapper.read"]):
            asking.can_block_in("anthropic/_base_client.py", "get_platform")
        # LiteLLM makes its client of the openai SDK when it first asks, whoever asks.
        stat.can_block_in("litellm/llms/openai/openai.py", "acompletion")
        # Whether an extra is there is asked by an import, once, where the settings are made; an
        # older redis then reads its own version from the disk.
        blocking.functions["io.TextIOWrapper.read"].can_block_in(
            "ctxpipe/settings.py", "check_extra"
        )
        lock = blocking.functions["threading.Lock.acquire"]
        # What measures the coverage locks its own data, wherever a file is met for the first time,
        # and leaves no frame by which that is known.
        coverage = sys.modules.get("coverage")
        if coverage is not None and coverage.Coverage.current() is not None:
            lock.deactivate()
        # Several event loops of one process may want a module for the first time at once.
        for importing in ("_find_and_load", "_lock_unlock_module"):
            lock.can_block_in("<frozen importlib._bootstrap>", importing)
        yield


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """A level that a test or an example of the documentation sets holds for that test only."""
    levels = {
        logger: logger.level for logger in (logging.getLogger(), logging.getLogger("ctxpipe"))
    }
    yield
    for logger, level in levels.items():
        if logger.level != level:  # to set one empties the cache of every logger
            logger.setLevel(level)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of transcripts, cases and sources beside the project."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the shared folder with transcripts and sources is not beside the project")
    return folder


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch):
    """A test sees the defaults, whatever the shell around it has set."""
    from ctxpipe import settings as names

    for value in vars(names).values():
        if isinstance(value, names.Setting):
            monkeypatch.delenv(value.name, raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """Return a folder to which the user of the test may not write, also if that is root."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        folder.rmdir()
