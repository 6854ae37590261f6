"""Real faults of disks, processes and clocks.

A full disk, one that is read-only, no descriptors left, links swapped, killed processes, odd
clocks.

``pytest -s tests/whole/test_faults.py`` prints the table; ``CTXPIPE_KILLED_RUNS=200`` kills 200
runs.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from api_rules import faults
from histories import step, user
from places import ROOT, SUPPORT
from processes import prepared_python, python, small_disk

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    Session,
    SmartTruncate,
    StorageError,
)
from ctxpipe.messages import Message, tool_results
from ctxpipe.placeholders.placeholders import reference
from ctxpipe.stages.compact.stage import Breaker, Restore
from ctxpipe.stages.reports import Outcome
from ctxpipe.summarizers import ExtractiveSummarizer

TABLE: list[tuple[str, str, str, str]] = []
RUNS = int(os.environ.get("CTXPIPE_KILLED_RUNS", "10"))


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Every fault with what was lost and leaked, printed at the end."""
    TABLE.clear()
    yield
    rows = [("fault", "lost", "leaked", "what is reported"), ("---",) * 4, *TABLE]
    print("\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))


def told(fault: str, reported: str, *, lost: int = 0, leaked: int = 0):
    TABLE.append((fault, str(lost), str(leaked), reported))
    assert (lost, leaked) == (0, 0)


class Work:
    """An agent's work on the folder *root*.

    What is long goes to files, what is old is compacted, all is journalled.
    """

    def __init__(self, root: Path, **storage: Any):
        self.storage = LocalStorage(root, **storage)
        self.history: list[Message] = [user("go")]
        self.session = self.new_session()
        self.given: set[str] = set()

    def new_session(self) -> Session:
        stages = (
            DirectOffload(self.storage),
            Compact(
                ExtractiveSummarizer(), self.storage, restore=Restore(work_dir=self.storage.root)
            ),
            SmartTruncate(self.storage),
        )
        return ContextPipeline(stages, budget=Budget(60_000, trigger=6000)).session(
            "s", journal=self.storage
        )

    async def turn(self, chars: int) -> Result:
        """A step of the agent with a result of *chars* characters.

        The context is sound, whatever the disk does.
        """
        number = len(self.history)
        text = (f"result {number} " * chars)[:chars]
        self.given.add(text)
        self.history += step(f"t{number}", result=text)
        result = await self.session.run(self.history)
        assert faults(result.messages) == []
        return result

    def lost(self, messages: list[Message]) -> int:
        """The placeholders without a file that holds one of the results, whole."""
        where = [path for result in tool_results(messages) if (path := reference(result.content))]
        return sum(
            not Path(path).exists() or Path(path).read_text() not in self.given for path in where
        )

    def drafts(self) -> int:
        return sum(
            path.name.startswith(".ctxpipe-tmp-") for path in Path(self.storage.root).rglob("*")
        )

    async def is_whole(self) -> bool:
        """Whether the raw history can be rebuilt, here and in a session that begins anew."""
        again = self.new_session()
        await again.run(self.history)
        return await self.session.history() == self.history == await again.history()


def outcome(result: Result, stage: str) -> Outcome:
    return next(report.outcome for report in result.reports if report.stage == stage)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def remount(disk: Path, options: str):
    subprocess.run(
        ["mount", "-o", f"remount,{options}", str(disk)], check=True, capture_output=True
    )


# The disk -----------------------------------------------------------------------------------------


async def test_on_a_full_disk_results_stay_inline_and_everything_goes_on_once_there_is_room(
    tmp_path,
):
    with small_disk(tmp_path, kilobytes=64) as disk:
        work = Work(disk)
        open_before = descriptors()
        first = await work.turn(20_000)
        full = [await work.turn(20_000) for _ in range(6)]
        missing = sum(work.lost(result.messages) for result in (first, *full))
        failed = [report.error for report in full[-1].reports if report.outcome is Outcome.FAILED]
        drafts = work.drafts()
        remount(disk, "size=8m")
        after = [await work.turn(20_000) for _ in range(3)]

        assert outcome(first, "DirectOffload") is Outcome.CHANGED
        assert outcome(full[-1], "DirectOffload") is Outcome.FAILED
        assert {error.errno for error in failed if isinstance(error, StorageError)} == {
            errno.ENOSPC
        }
        assert str(work.history[-9]["content"]) in str([*after[-1].messages, *full[-1].messages])
        assert outcome(after[0], "DirectOffload") is Outcome.CHANGED
        lost = (
            missing
            + sum(work.lost(result.messages) for result in after)
            + (not await work.is_whole())
        )
        leaked = drafts + descriptors() - open_before
        told(
            "full disk (tmpfs)",
            "FAILED (No space left on device), results inline",
            lost=lost,
            leaked=leaked,
        )


async def test_on_a_disk_that_becomes_read_only_what_lies_there_can_be_read_and_the_rest_stays_inline(  # noqa: E501
    tmp_path,
):
    with small_disk(tmp_path, kilobytes=8192) as disk:
        work = Work(disk)
        open_before = descriptors()
        before = await work.turn(20_000)
        [file] = disk.rglob("*.md")
        remount(disk, "ro")
        try:
            closed = [await work.turn(5000) for _ in range(4)]
            assert (await work.storage.read(str(file))).text in work.given
            lost = sum(work.lost(result.messages) for result in (before, *closed))
        finally:
            remount(disk, "rw")
        after = await work.turn(5000)

        errors = [
            report.error
            for result in closed
            for report in result.reports
            if report.outcome is Outcome.FAILED
        ]
        assert {error.errno for error in errors if isinstance(error, StorageError)} == {errno.EROFS}
        assert all(outcome(result, "DirectOffload") is Outcome.FAILED for result in closed)
        assert outcome(after, "DirectOffload") is Outcome.CHANGED
        lost += work.lost(after.messages) + (not await work.is_whole())
        leaked = work.drafts() + descriptors() - open_before
        told(
            "read-only disk (tmpfs)",
            "FAILED (Read-only file system), results inline",
            lost=lost,
            leaked=leaked,
        )


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    with ExitStack() as opened:
        with suppress(OSError):
            while True:
                opened.enter_context(open("/dev/null", "rb"))
        yield


EMFILE = """
import asyncio, json, resource, sys
from pathlib import Path
import test_faults as here
from ctxpipe.stages.reports import Outcome

async def main(root):
    work = here.Work(Path(root))
    first = await work.turn(20_000)  # everything is imported now
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    before = here.descriptors()
    with here.no_descriptors_left():
        starved = [await work.turn(20_000) for _ in range(3)]
    after = [await work.turn(20_000) for _ in range(3)]
    reports = [report for result in starved for report in result.reports]
    errors = [report.error.errno for report in reports if report.outcome is Outcome.FAILED]
    results = [first, *starved, *after]
    print(json.dumps({
        "starved": [here.outcome(result, "DirectOffload") for result in starved],
        "after": [here.outcome(result, "DirectOffload") for result in after],
        "errors": errors,
        "lost": sum(work.lost(result.messages) for result in results) + (not await work.is_whole()),
        "leaked": work.drafts() + here.descriptors() - before,
    }))

asyncio.run(main(sys.argv[1]))
"""


def test_without_descriptors_results_stay_inline_until_there_are_some_again(tmp_path):
    found = json.loads(ran_beside(EMFILE, tmp_path).splitlines()[-1])

    assert found["starved"] == ["failed"] * 3
    assert found["after"] == ["changed"] * 3
    assert set(found["errors"]) == {errno.EMFILE}
    told(
        "no descriptors left (EMFILE)",
        "FAILED (Too many open files), results inline",
        lost=found["lost"],
        leaked=found["leaked"],
    )


def ran_beside(script: str, *arguments: object) -> str:
    """What *script* prints, run where it can import the tests' modules."""
    return python(
        (
            "import sys; sys.path[:0] = "
            f"{[str(Path(__file__).parent), str(SUPPORT), str(ROOT)]!r}\n{script}"
        ),
        *arguments,
    )


# Links --------------------------------------------------------------------------------------------

SWAPPING = """
import ctypes, os, sys
one, other = map(os.fsencode, sys.argv[1:])
exchange = ctypes.CDLL(None, use_errno=True).renameat2
print("SWAPPING", flush=True)
while True:  # at each moment each name is there: it is either the one thing or the other
    if exchange(-100, one, -100, other, 2):
        sys.exit(os.strerror(ctypes.get_errno()))
"""


@contextmanager
def swapped_all_the_time(one: Path, other: Path) -> Iterator[None]:
    command = [sys.executable, "-c", SWAPPING, str(one), str(other)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip(f"names cannot be exchanged here: {process.communicate()[1]}")
        try:
            yield
            assert process.poll() is None, process.communicate()
        finally:
            process.kill()


async def test_a_session_folder_swapped_for_a_link_all_the_time_never_leads_outside(
    tmp_path,
):
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (root / "s").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    storage, written, refused = LocalStorage(root), list[str](), 0
    with swapped_all_the_time(root / "s", root / "link"):
        for number in range(400):
            try:
                written += await storage.write([(f"s/{number}.md", f"text {number}")])
            except StorageError:
                refused += 1
    if (root / "s").is_symlink():
        (root / "link").rename(root / "folder")
        (root / "s").rename(root / "link")
        (root / "folder").rename(root / "s")

    lost = sum(
        not Path(path).exists() or Path(path).read_text() != f"text {Path(path).stem}"
        for path in written
    )
    assert written
    assert refused
    assert list(outside.iterdir()) == []
    leaked = sum(path.name.startswith(".ctxpipe-tmp-") for path in root.rglob("*"))
    told(
        "session folder swapped for a link",
        "FAILED where the link was met, nothing outside",
        lost=lost,
        leaked=leaked,
    )


async def test_a_project_file_swapped_for_a_link_to_a_secret_is_never_read_through_it(
    tmp_path,
):
    from ctxpipe.storage.files import LocalFiles

    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "secret").write_text("the secret")
    (project / "a.txt").write_text("the file")
    (project / "b.txt").symlink_to(tmp_path / "secret")
    files, seen, open_before = LocalFiles(project), set[str](), descriptors()
    with swapped_all_the_time(project / "a.txt", project / "b.txt"):
        for _ in range(800):
            try:
                seen.add((await files.read("a.txt", 100)).text)
            except StorageError as error:
                seen.add(type(error).__name__)

    assert seen == {"the file", "StorageError"}
    told(
        "project file swapped for a link",
        "not restored, with a warning",
        leaked=descriptors() - open_before,
    )


# Processes ----------------------------------------------------------------------------------------


def lines_of(*arguments: object) -> list[dict[str, Any]]:
    command = [*prepared_python(), str(SUPPORT / "killed_runs.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT)])}
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_runs_killed_at_any_moment_go_on_in_another_process_with_nothing_lost(
    tmp_path,
):
    unharmed, *runs = lines_of("kill", tmp_path, RUNS)

    assert len(runs) == RUNS
    assert sum(run["killed"] for run in runs) > RUNS / 4  # the others were done before
    lost = sum((not run["whole"]) + len(run["faults"]) for run in (unharmed, *runs))
    leaked = sum(run["left"] + run["descriptors"] - unharmed["descriptors"] for run in runs)
    drafts = sum(run["drafts"] for run in runs)
    fault = f"kill -9 in the middle of {RUNS} runs"
    told(
        fault,
        f"the next process goes on from the journal; {drafts} drafts, swept later",
        lost=lost,
        leaked=leaked,
    )


def test_two_processes_with_one_session_name_on_one_root_do_each_other_no_harm(
    tmp_path,
):
    found = lines_of("together", tmp_path)

    assert len(found) == 4
    lost = sum((not run["whole"]) + len(run["faults"]) for run in found)
    told(
        "two processes on one root",
        "each its own texts; a journal of both",
        lost=lost,
        leaked=sum(r["left"] for r in found),
    )


# Time ---------------------------------------------------------------------------------------------


class Backwards:
    """A clock that goes back an hour each time somebody looks."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now -= 3600
        return self.now


async def test_with_a_clock_that_goes_backwards_records_keep_their_order_and_nothing_living_is_cleaned_up(  # noqa: E501
    tmp_path,
):
    clock = Backwards()
    work, archived = Work(tmp_path, clock=clock), list[str]()
    work.session = ContextPipeline(
        [
            DirectOffload(work.storage),
            Compact(
                ExtractiveSummarizer(),
                work.storage,
                restore=Restore(work_dir=tmp_path),
                breaker=Breaker(clock=clock),
            ),
            SmartTruncate(work.storage),
        ],
        budget=Budget(60_000, trigger=6000),
    ).session("s", journal=work.storage, clock=clock)
    lost = 0
    for number in range(100):
        result = await work.turn(20_000 if number % 5 == 0 else 900)
        archived += [r.detail.archive for r in result.reports if getattr(r.detail, "archive", None)]  # type: ignore[union-attr,misc]
        work.session.observe({"input_tokens": 5, "cache_read_input_tokens": 5000})
        await work.storage.cleanup(max_age=0, live=[result.messages])
        lost += work.lost(result.messages)

    numbers = [int(Path(path).stem.rsplit("-", 1)[1]) for path in archived]
    assert len(numbers) > 2
    assert numbers == sorted(set(numbers))
    assert all(Path(path).exists() for path in archived)
    told(
        "a clock going backwards",
        "nothing; records are numbered, not dated",
        lost=lost,
        leaked=work.drafts(),
    )
