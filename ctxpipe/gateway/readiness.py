"""Checks whether a gateway can do its work: reach its upstreams, and write texts and journals."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

import anyio
import httpx2

from .._threads.threads import in_thread
from ..errors import CtxpipeError
from ..storage import JournalStorage, LocalStorage
from ..storage.atomic import temporary_file
from ..storage.ownership import StorageRoot
from .record import logger
from .shaping import Shaper
from .upstream import Upstream

CHECK_SECONDS = 2.0
"""Maximum duration of a check; one that takes longer has failed."""
REPEAT_SECONDS = 5.0
"""Time for which the results are used again, so that probes cause no load."""
PROBE_SESSION = "ctxpipe-readiness"
"""Session that is read in the journal; it does not exist."""

Check = Callable[[], Awaitable[object]]


class Readiness:
    """The checks of a gateway. A check passes if its function returns in time without an error."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._lock = anyio.Lock()
        self._results: dict[str, bool] = {}
        self._time = -REPEAT_SECONDS

    async def results(self) -> Mapping[str, bool]:
        """Return the name of each check, and True if it passes; at most REPEAT_SECONDS old.

        A check that begins to fail is logged, and also when it passes again.
        """
        async with self._lock:
            if time.monotonic() - self._time >= REPEAT_SECONDS:
                results: dict[str, bool] = {}
                async with anyio.create_task_group() as tasks:
                    for name, check in self._checks.items():
                        tasks.start_soon(self._run, name, check, results)
                self._results = results
                self._time = time.monotonic()
            return self._results

    async def _run(self, name: str, check: Check, results: dict[str, bool]) -> None:
        """Store in *results* whether *check* passes."""
        is_passed = False
        with anyio.move_on_after(CHECK_SECONDS):
            try:
                await check()
                is_passed = True
            except (CtxpipeError, OSError, httpx2.HTTPError) as error:
                logger.debug("the check of %s fails: %s", name, type(error).__name__)
        if is_passed != self._results.get(name, True):
            logger.warning("the check of %s %s", name, "passes again" if is_passed else "fails")
        results[name] = is_passed


def checks_of(upstream: Upstream, shaper: Shaper) -> dict[str, Check]:
    """Return the checks of a gateway: "upstream", and "texts" and "journal" if it writes any.

    *shaper* is that of any tenant; all of them write to the same disk and the same database.
    """
    checks: dict[str, Check] = {"upstream": upstream.reach}
    storage = shaper.storage
    journal = shaper.journal
    if storage is not None:
        checks["texts"] = lambda: in_thread(write_and_delete, storage)
    if journal is not None and journal is not storage:
        checks["journal"] = lambda: read_nothing(journal)
    return checks


def write_and_delete(storage: LocalStorage) -> None:
    """Write a file in the folder of *storage*, and delete it. Raises StorageError or OSError."""
    with (
        StorageRoot(str(storage.root)).folder("", create=True) as folder,
        temporary_file(folder, [b"ready"], fsync=False),
    ):
        pass


async def read_nothing(journal: JournalStorage) -> None:
    """Read the *journal* of a session that does not exist. Raises StorageError."""
    await journal.entries(PROBE_SESSION)
