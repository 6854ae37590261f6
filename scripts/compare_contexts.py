"""Compare what this version of ctxpipe sends, or writes to disk, with another version.

    python scripts/compare_contexts.py --beside FOLDER TRANSCRIPTS...
                                       [--limit 20] [--turns 120] [--lives 300]
    python scripts/compare_contexts.py --bytes --beside FOLDER TRANSCRIPTS...
    python scripts/compare_contexts.py --journals [--bytes] --beside FOLDER TRANSCRIPTS...
    python scripts/compare_contexts.py --requests --beside FOLDER

FOLDER is a checkout of the other version. TRANSCRIPTS are recorded conversations: files, or folders
of ``*.jsonl`` files. Both versions play the same conversations, turn by turn, through one session:

    transcripts, history    the caller passes its complete history in each turn
    transcripts, adopting   the caller continues with the context that the session returned
    transcripts, journal    as "history", with a journal; every 7th turn begins in a new process
    random lives            random conversations of a caller that appends, goes back, branches,
                            copies messages, moves cache marks, adopts contexts, starts new
                            processes

The stages are those of the library. If the stages of the two versions differ on purpose,
``--stages own`` plays three simple stages that are defined in this script; ``coding``, ``lines``
and ``chat`` play those of the presets.

Without ``--bytes``, ``--journals`` and ``--requests`` the contexts are compared. Each turn gets one
of these classes:

    equal      both versions send the same bytes
    two gaps   the history was cut, or a cache mark moved, while the old context had two or more
               separate gaps. Old versions treated them as one gap and dropped the messages between
    thinking   only thinking blocks differ that are removed, or that the API is asked to ignore, and
               the API accepts the new context (it binds thinking to the messages before it)
    undone     the caller took back a message that a summary describes. Old versions kept the
               summary, or started again from the raw history; new versions return to the context
               before that summary. If that turn got no reply, later summaries differ as well
    adopted    an old version, in a new process, did not know that the caller had adopted a context,
               and summarized ctxpipe's own texts in it as words of the caller
    too long   the old version truncated once, and the context was still at the trigger or above.
               The new version truncates again at once
    carried    the old compaction ended above its target, because answered words of the user took
               more than half of the target. The new version shortens them, or writes them to a file
    after      the contexts of an earlier turn of the same conversation differed
    other      anything else. Its first difference is printed, and the exit status is 1

A table counts the classes. It also counts, for each version, the contexts that the API would refuse
because of their thinking ("refused"), and those that do not end with the newest message of the
history ("without newest").

With ``--bytes`` the files are compared. Each conversation has a journal, an archive and offloaded
results in one folder, with the same session id and the same clock in both versions; random numbers
are replaced by constants. The first file that differs, or that one version does not write, is
printed with the place of the difference, and the exit status is 1.

With ``--journals`` each version continues the journals of the other. Every conversation with a
journal is played to its middle with one version. Then each version continues it in a new process,
from a copy of the journal and its files: first with the same history once more, then with the rest
of the conversation. The turns of the two are compared as above. With ``--bytes`` the files that
they have at the end are compared as well.

With ``--requests`` the recorded requests of the clients (tests/gateway/requests) are sent through a
gateway of each version, once so that it moves results to files, and once so that it compacts. The
bodies that the upstream receives are compared byte by byte. The first difference is printed, and
the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import hashlib
import json
import logging
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import ctxpipe
from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Skip,
    SmartTruncate,
    presets,
)
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.summarizers import ExtractiveSummarizer, Retry
from ctxpipe.testing.rules import Model
from ctxpipe.testing.signatures import bare, sign, verify

SCRIPT = Path(__file__).resolve()
REQUESTS_SCRIPT = SCRIPT.with_name("play_requests.py")
THIS_VERSION = SCRIPT.parents[1]
MODES = ("history", "adopting", "journal")
MODES_WITH_JOURNAL = ("adopting", "journal")  # "history" would write what "journal" writes
CLASSES = ("two gaps", "thinking", "undone", "adopted", "too long", "carried", "after", "other")
FAULTS = ("refused", "without newest")
FIGURES = (
    "turns",
    "equal",
    *CLASSES,
    *(f"{fault}: {side}" for fault in FAULTS for side in ("old", "new")),
)
CUTS = ("cut", "branch", "adopt and cut")
ADOPTIONS = ("adopt", "adopt and cut")
THINKING = ("thinking", "redacted_thinking")
PRESETS = ("coding", "lines", "chat")
LIVES_PER_PROCESS = 25
TURNS_PER_PROCESS = 7
FIRST_SECOND = 1_000_000.0  # the time at which each conversation begins
TIMEOUT_SECONDS = 600  # for one transcript, or 25 random lives, in one version
EXCERPT_CHARS = 300  # characters printed of each version at the first difference
# The digest of an archived message. It depends on the name of the folder for the files.
DIGEST = re.compile(r"\([0-9a-f]{8}(?:-[0-9a-f]{8}){3}\)")
TRIGGERS = (1_500, 3_000, 6_000)  # of random lives, in tokens
TRANSCRIPT_TRIGGER = 12_000
OFFLOADED = b"offloaded to file"
COMPACTED = b"[Conversation compressed]"
COMPACTING_SHARE = 0.7  # the window, as a share of a client's longest request: smaller than that

Messages: TypeAlias = list[dict[str, Any]]


# The command --------------------------------------------------------------------------------------


def main() -> int:
    """Run the command. Returns the exit status: 1 if a difference has no explanation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("transcripts", nargs="*", type=Path, metavar="TRANSCRIPTS")
    parser.add_argument(
        "--beside", type=Path, metavar="FOLDER", help="checkout of the other version"
    )
    parser.add_argument(
        "--bytes", action="store_true", help="compare the files of journals and archives"
    )
    parser.add_argument(
        "--journals", action="store_true", help="continue the journals of the other version"
    )
    parser.add_argument(
        "--requests", action="store_true", help="compare the requests of a gateway instead"
    )
    parser.add_argument(
        "--limit", type=int, default=20, help="maximum number of transcripts, evenly spread"
    )
    parser.add_argument(
        "--turns", type=int, default=120, help="maximum number of turns of a transcript"
    )
    parser.add_argument("--lives", type=int, default=300, help="number of random lives")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first random life")
    parser.add_argument("--stages", choices=("library", "own", *PRESETS), default="library")
    # Internal: the request to one version, as JSON.
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        print(json.dumps(asyncio.run(play(**json.loads(options.play)))))
        return 0
    if options.beside is None:
        parser.error("name the checkout of the other version: --beside FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        # Links resolved: journals and contexts contain the path.
        work_folder = Path(folder).resolve()
        if options.requests:
            return compare_requests(options, work_folder)
        if options.journals:
            return compare_journals(options, work_folder)
        if options.bytes:
            return compare_files(options, work_folder)
        return compare_contexts(options, work_folder)


def compare_contexts(options: argparse.Namespace, work_folder: Path) -> int:
    """Compare the contexts of each turn and print the table. Returns the exit status."""
    figures_by_kind: dict[str, Counter[str]] = {}
    events: Counter[str] = Counter()
    for kind, request in requests(options, MODES):
        figures = figures_by_kind.setdefault(kind, Counter())
        old_records = play_version(options.beside, request, work_folder / "files")
        new_records = play_version(THIS_VERSION, request, work_folder / "files")
        print(f"{kind}: {', '.join(new_records)[:80]}", file=sys.stderr)
        compare_records(old_records, new_records, figures, events)
    return print_results(figures_by_kind, events)


def compare_records(
    old_records: Any, new_records: Any, figures: Counter[str], events: Counter[str]
) -> None:
    """Add the classes and faults of each turn to *figures*, and what stages did to *events*."""
    for name, new in new_records.items():
        old = old_records[name]
        classes = classify(name, old, new)
        figures.update(classes)
        figures["turns"] += len(classes)
        for side, record in (("old", old), ("new", new)):
            for turn in record["turns"]:
                figures.update(f"{fault}: {side}" for fault in turn["faults"])
        for turn in new["turns"]:
            events.update(turn["reports"])
            events["contexts with two or more gaps"] += turn["gaps"] > 1


def print_results(figures_by_kind: dict[str, Counter[str]], events: Counter[str]) -> int:
    """Print the table and the events. Returns the exit status."""
    print_table(figures_by_kind)
    counts = ", ".join(f"{count:,} × {event}" for event, count in sorted(events.items()))
    print(f"\nin this version: {counts}")
    return 1 if any(figures["other"] for figures in figures_by_kind.values()) else 0


def print_table(figures_by_kind: dict[str, Counter[str]]) -> None:
    """Print a column for each kind of conversation, and one for all of them."""
    columns = {**figures_by_kind, "in all": sum(figures_by_kind.values(), Counter())}
    print(
        "\n" + " " * 24 + "".join(f"{kind.removeprefix('transcripts, '):>14}" for kind in columns)
    )
    for name in FIGURES:
        print(f"{name:<24}" + "".join(f"{figures[name]:>14,}" for figures in columns.values()))


def requests(
    options: argparse.Namespace, modes: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind of the conversations to play, and the arguments of `play` for them."""
    common_arguments = {
        "turns": options.turns,
        "stages": options.stages,
        "with_journal": options.bytes or options.journals,
    }
    for path in selected_transcripts(options.transcripts, options.limit):
        for mode in modes:
            yield (
                f"transcripts, {mode}",
                {"transcript": str(path), "mode": mode, **common_arguments},
            )
    end = options.seed + options.lives
    for first in range(options.seed, end, LIVES_PER_PROCESS):
        seeds = list(range(first, min(first + LIVES_PER_PROCESS, end)))
        yield "random lives", {"seeds": seeds, **common_arguments}


def selected_transcripts(places: Sequence[Path], limit: int) -> list[Path]:
    """Return up to *limit* of the files at *places*, evenly spread over all of them."""
    if not limit:
        return []
    files: list[Path] = []
    for place in places:
        files += sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    step = max(1, -(-len(files) // limit))
    return [path.resolve() for path in files[::step]]


def play_version(
    version: Path,
    request: dict[str, Any],
    root: Path,
    files: Path | None = None,
    *,
    first_files: Path | None = None,
) -> dict[str, Any]:
    """Play *request* with the checkout *version* in a process of its own, and return its records.

    The process writes below *root*, which is the same path for both versions. At its beginning the
    folder is a copy of *first_files*, or empty. Then the files are moved to *files*, or removed if
    that is None.
    """
    arguments = json.dumps({**request, "version": str(version.resolve())})
    output = run_version(version, [SCRIPT, "--play", arguments], root, first_files)
    if files is None:
        shutil.rmtree(root)
    else:
        root.rename(files)
    records: dict[str, Any] = json.loads(output)
    return records


def run_version(
    version: Path, command: Sequence[Path | str], root: Path, first_files: Path | None = None
) -> bytes:
    """Run the Python program *command* in *root* with *version* of ctxpipe; return its output.

    *root* must not exist; it becomes a copy of *first_files*, or an empty folder.
    """
    if first_files is None:
        root.mkdir()
    else:
        shutil.copytree(first_files, root)
    environment = {**os.environ, "PYTHONPATH": str(version.resolve())}
    answer = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=root,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    return answer.stdout


# Comparing files ----------------------------------------------------------------------------------


def compare_files(options: argparse.Namespace, work_folder: Path) -> int:
    """Compare the files of both versions, byte by byte. Returns 1 at the first difference."""
    file_count = 0
    byte_count = 0
    root = work_folder / "files"
    old_files = work_folder / "old"
    new_files = work_folder / "new"
    for kind, request in requests(options, MODES_WITH_JOURNAL):
        play_version(options.beside, request, root, old_files)
        records = play_version(THIS_VERSION, request, root, new_files)
        names = ", ".join(records)
        difference = first_difference(old_files, new_files)
        if difference:
            print(f"{kind}: {names}\n{difference}")
            return 1
        sizes = [path.stat().st_size for path in files_below(new_files).values()]
        if not sizes:
            print(f"{kind}: {names}\nneither version has written a file")
            return 1
        print(f"{kind}: {len(sizes):,} files are equal: {names[:80]}", file=sys.stderr)
        file_count += len(sizes)
        byte_count += sum(sizes)
        shutil.rmtree(old_files)
        shutil.rmtree(new_files)
    if not file_count:
        print("no conversation was played: name transcripts, or a number of random lives")
        return 1
    print(f"{file_count:,} files with {byte_count:,} bytes are equal")
    return 0


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files below *folder* by their relative path, sorted."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path for path in paths}


def first_difference(old_folder: Path, new_folder: Path) -> str:
    """Return a description of the first file that differs; "" if all files are equal."""
    old_paths = files_below(old_folder)
    new_paths = files_below(new_folder)
    for name in sorted({*old_paths, *new_paths}):
        if name not in new_paths:
            return f"{name}: only the old version writes this file"
        if name not in old_paths:
            return f"{name}: only the new version writes this file"
        old_bytes = old_paths[name].read_bytes()
        new_bytes = new_paths[name].read_bytes()
        if old_bytes != new_bytes:
            offset = common_length(old_bytes, new_bytes)
            line = old_bytes.count(b"\n", 0, offset) + 1
            start = max(0, offset - EXCERPT_CHARS // 3)
            return (
                f"{name} differs in line {line}, at byte {offset:,}\n"
                f"  old: {old_bytes[start : start + EXCERPT_CHARS]!r}\n"
                f"  new: {new_bytes[start : start + EXCERPT_CHARS]!r}"
            )
    return ""


# Comparing continued journals ---------------------------------------------------------------------


def compare_journals(options: argparse.Namespace, work_folder: Path) -> int:
    """Continue the journals of each version with both, and print the table of the second halves.

    Returns the exit status.
    """
    versions = {"old": options.beside, "new": THIS_VERSION}
    root = work_folder / "files"
    figures_by_kind: dict[str, Counter[str]] = {f"{name} journals": Counter() for name in versions}
    events: Counter[str] = Counter()
    for kind, request in requests(options, MODES_WITH_JOURNAL):
        for writer, version in versions.items():
            first_half = {**request, "part": "first", "handover": str(work_folder / "handover")}
            play_version(version, first_half, root, work_folder / "written")
            second_half = {**first_half, "part": "second"}
            records = {
                reader: play_version(
                    version,
                    second_half,
                    root,
                    work_folder / reader,
                    first_files=work_folder / "written",
                )
                for reader, version in versions.items()
            }
            print(f"{kind}, written by {writer}: {', '.join(records['new'])[:80]}", file=sys.stderr)
            figures = figures_by_kind[f"{writer} journals"]
            compare_records(records["old"], records["new"], figures, events)
            difference = ""
            if options.bytes:
                difference = first_difference(work_folder / "old", work_folder / "new")
            if difference:
                print(f"{kind}, written by {writer}: {', '.join(records['new'])}\n{difference}")
                return 1
            for name in ("written", "old", "new"):
                shutil.rmtree(work_folder / name)
    return print_results(figures_by_kind, events)


# Comparing requests of a gateway ------------------------------------------------------------------


def compare_requests(options: argparse.Namespace, work_folder: Path) -> int:
    """Compare what a gateway of each version sends. Returns 1 at the first difference."""
    body_count = 0
    byte_count = 0
    counts = {OFFLOADED: 0, COMPACTED: 0}
    root = work_folder / "files"
    for name, recording, window in client_recordings():
        path = work_folder / "recording.json"
        path.write_text(json.dumps(recording), "utf-8")
        for window_arguments in ([], [str(window)]):
            command: list[Path | str] = [REQUESTS_SCRIPT, path, *window_arguments]
            for version, files in ((options.beside, "old"), (THIS_VERSION, "new")):
                run_version(version, command, root)
                root.rename(work_folder / files)
            difference = first_difference(work_folder / "old", work_folder / "new")
            if difference:
                limit = f", with a window of {window:,} tokens" if window_arguments else ""
                print(f"{name}{limit}: {difference}")
                return 1
            bodies = [path.read_bytes() for path in files_below(work_folder / "new").values()]
            print(f"{name}: {len(bodies)} bodies are equal", file=sys.stderr)
            body_count += len(bodies)
            byte_count += sum(len(body) for body in bodies)
            for mark in counts:
                counts[mark] += sum(mark in body for body in bodies)
            shutil.rmtree(work_folder / "old")
            shutil.rmtree(work_folder / "new")
    print(
        f"{body_count:,} bodies with {byte_count:,} bytes are equal; {counts[OFFLOADED]:,} have "
        f"offloaded results, {counts[COMPACTED]:,} a summary"
    )
    return 0 if all(counts.values()) else 1


def client_recordings() -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield the name of each recorded client, its requests, and a window that they do not fit.

    The requests are as `play_requests` reads them.
    """
    sys.path.append(str(THIS_VERSION / "tests" / "support"))
    from client_requests import FOLDER, read  # noqa: PLC0415

    for path in sorted(FOLDER.glob("*.json")):
        sent_requests = [sent for sent in read(path.stem).requests if sent.body is not None]
        server = "OpenAIServer"
        if "contents" in sent_requests[0].body:
            server = "GeminiServer"
        elif sent_requests[0].target.partition("?")[0].endswith("/messages"):
            server = "MessagesServer"
        longest = max(token_count(json.dumps(sent.body)) for sent in sent_requests)
        recording = {"server": server, "requests": [asdict(sent) for sent in sent_requests]}
        yield path.stem, recording, int(COMPACTING_SHARE * longest)


# Comparing contexts -------------------------------------------------------------------------------


def classify(name: str, old: Any, new: Any) -> list[str]:
    """Return the class of each turn of the conversation *name*, and print those that are "other".

    *old* and *new* are the records of the two versions.
    """
    classes: list[str] = []
    previous_turn: Any = {"sent": [], "gaps": 0}
    moves: list[str] = []
    is_after = False
    is_undone = False
    for number, (old_turn, new_turn) in enumerate(zip(old["turns"], new["turns"], strict=True)):
        moves.append(new_turn["move"])
        is_shorter = new_turn["tokens"] < old_turn["tokens"]
        if old_turn["sent"] == new_turn["sent"] and old_turn["options"] == new_turn["options"]:
            classes.append("equal")
        elif is_after:
            classes.append("after")
        elif old_turn["spoken"] == new_turn["spoken"] and "refused" not in new_turn["faults"]:
            classes.append("thinking")
        elif previous_turn["gaps"] > 1 and retains_more(previous_turn, old_turn, new_turn):
            classes.append("two gaps")
        elif is_undone or (new_turn["undone"] and new_turn["move"] in CUTS):
            classes.append("undone")
        elif was_adopted_in_another_process(moves) and "Compact changed" in old_turn["reports"]:
            classes.append("adopted")
        elif old_turn["is_too_long"] and is_shorter:
            classes.append("too long")
        elif old_turn["is_over_target"] and is_shorter:
            classes.append("carried")
        else:
            classes.append("other")
            print_difference(name, number, old, new)
        is_after = is_after or old_turn["sent"] != new_turn["sent"]
        is_undone = is_undone or new_turn["undone"]
        previous_turn = old_turn
    return classes


def was_adopted_in_another_process(moves: Sequence[str]) -> bool:
    """Return True if a new process started after the caller adopted a context."""
    for number, move in enumerate(moves):
        if move in ADOPTIONS:
            return "new process" in moves[number:]
    return False


def retains_more(previous_turn: Any, old_turn: Any, new_turn: Any) -> bool:
    """Return True if the new version retains at least as much of the previous context.

    Also if the two contexts differ in their cache marks only.
    """
    if old_turn["unmarked"] == new_turn["unmarked"]:
        return True
    if new_turn["move"] not in CUTS:
        return False
    retained_by_new = common_length(previous_turn["sent"], new_turn["sent"])
    return retained_by_new >= common_length(previous_turn["sent"], old_turn["sent"])


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the number of elements at the beginning of *one* that *other* begins with, too."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def print_difference(name: str, number: int, old: Any, new: Any) -> None:
    """Print the first difference of the contexts of turn *number*."""
    old_turn = old["turns"][number]
    new_turn = new["turns"][number]
    index = common_length(old_turn["sent"], new_turn["sent"])
    print(f"\n{name}, turn {number} ({old_turn['move']}), message {index}")
    messages = []
    for record, turn in ((old, old_turn), (new, new_turn)):
        digests = turn["sent"]
        digest_at_index = digests[index] if index < len(digests) else turn["options"]
        messages.append(record["texts"][digest_at_index])
    start = max(0, common_length(*messages) - EXCERPT_CHARS // 3)
    for side, turn, message in zip(("old", "new"), (old_turn, new_turn), messages, strict=True):
        print(
            f"  {side}: {len(turn['sent'])} messages, {turn['gaps']} gaps, {turn['summaries']} "
            "summaries so far"
        )
        print(f"         {'; '.join(turn['reports'])}")
        print(f"         {message[start : start + EXCERPT_CHARS]}")


# Playing, in a process for one version: from here on, ctxpipe is the version in PYTHONPATH --------


async def play(
    version: str,
    stages: str,
    turns: int,
    with_journal: bool = False,
    transcript: str = "",
    mode: str = "",
    seeds: Sequence[int] = (),
    part: str = "whole",
    handover: str = "",
) -> dict[str, Any]:
    """Play a transcript or random lives, and return the record of each conversation by its name.

    A record has the turns, and the texts of the messages by their digest. The *part* "first" ends
    in the middle of each conversation and writes its state to the file *handover*; the part
    "second" reads that file and plays the rest.
    """
    if not Path(ctxpipe.__file__).is_relative_to(version):
        raise SystemExit(f"{ctxpipe.__file__} is not in {version}")
    # The summarizer fails on purpose; these errors are no news.
    logging.getLogger("ctxpipe").setLevel(logging.CRITICAL)
    # Journals contain random numbers, and the time of each removal, which would differ each time.
    secrets.token_hex = lambda nbytes=None: "00" * (nbytes or 8)
    time.time = lambda: FIRST_SECOND
    conversations: dict[str, Life | Replay] = {}
    if transcript:
        caller = Caller(
            Setting(stages=stages, trigger=TRANSCRIPT_TRIGGER),
            has_journal=with_journal or mode == "journal",
        )
        messages: Any = read_transcript(Path(transcript)).messages
        name = f"{Path(transcript).stem}, {mode}"
        conversations[name] = Replay(caller, messages, mode, turns)
    for seed in seeds:
        conversations[f"life {seed}"] = Life(seed, stages, with_journal)
    states: dict[str, Any] = {}
    if part == "second":
        states = read_states(handover)
    for name, conversation in conversations.items():
        if part == "second":
            await conversation.resume(states[name])
        await conversation.run(to_middle=part == "first")
        states[name] = conversation.state()
    if part == "first":
        write_states(states, handover)
    return {name: conversation.caller.record() for name, conversation in conversations.items()}


def read_states(path: str) -> dict[str, Any]:
    """Return the states of the conversations in the file at *path*, by name."""
    states: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
    return states


def write_states(states: Mapping[str, Any], path: str) -> None:
    """Write the *states* of conversations to the file at *path*."""
    Path(path).write_text(json.dumps(states, default=as_sent), "utf-8")


class Replay:
    """A conversation that repeats the *messages* of a transcript: a turn for each reply in it."""

    def __init__(self, caller: Caller, messages: Messages, mode: str, turns: int) -> None:
        replies = [
            index
            for index, message in enumerate(messages)
            if message["role"] == "assistant" and index
        ]
        self.caller = caller
        self.messages = messages
        self.mode = mode
        self.exchanges = list(pairwise([*replies[:turns], len(messages)]))
        self.number = 0  # of the next exchange
        self.history = messages[: replies[0]]
        self.previous_history = self.history

    async def run(self, *, to_middle: bool) -> None:
        """Play the turns from the next one on, to the middle or to the end of the transcript."""
        end = len(self.exchanges) // 2 if to_middle else len(self.exchanges)
        for number in range(self.number, end):
            start, stop = self.exchanges[number]
            if self.mode == "journal" and number % TURNS_PER_PROCESS == TURNS_PER_PROCESS - 1:
                self.caller.start_process()
            context = await self.caller.take_turn(self.history, "append")
            self.previous_history = self.history
            previous_messages = context if self.mode == "adopting" else self.history
            self.history = [*previous_messages, *signed(context, self.messages[start:stop])]
        self.number = end

    def state(self) -> dict[str, Any]:
        """Return what another process needs to continue."""
        return {
            "caller": self.caller.state(),
            "number": self.number,
            "history": self.history,
            "previous_history": self.previous_history,
        }

    async def resume(self, state: dict[str, Any]) -> None:
        """Continue from *state*; the last turn of the other process is taken once more."""
        self.caller.resume(state["caller"])
        self.number = state["number"]
        self.history = state["history"]
        await self.caller.take_turn(state["previous_history"], "resume")


@dataclass(frozen=True)
class Setting:
    """Settings of the pipelines of one conversation. Sizes are in tokens, or as named."""

    stages: str
    trigger: int
    target_share: float = 0.5
    thinking: str = "keep"
    min_chars: int = 1_000
    ratio: float = 0.2
    verify: bool = False
    bad_days: bool = True

    @property
    def target(self) -> int:
        """Target of a compaction, in tokens."""
        return int(self.trigger * self.target_share)


@dataclass
class Caller:
    """A caller with one session, and the record of the contexts that it was given."""

    setting: Setting
    has_journal: bool
    turns: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    summaries: int = 0
    is_doubled: bool = False
    previous_new_messages: Messages = field(default_factory=list)
    name: str = "conversation"
    earlier_turn_count: int = 0  # turns that another process has taken

    def __post_init__(self) -> None:
        self.root = Path.cwd() / self.name
        self.start_process()

    def record(self) -> dict[str, Any]:
        """Return the turns so far, and the texts of their messages by digest."""
        return {"turns": self.turns, "texts": self.texts}

    def state(self) -> dict[str, Any]:
        """Return what another process needs to continue."""
        return {
            "summaries": self.summaries,
            "is_doubled": self.is_doubled,
            "previous_new_messages": self.previous_new_messages,
            "earlier_turn_count": self.turn_count,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from *state* in this new process."""
        self.summaries = state["summaries"]
        self.is_doubled = state["is_doubled"]
        self.previous_new_messages = state["previous_new_messages"]
        self.earlier_turn_count = state["earlier_turn_count"]
        self.start_process()

    @property
    def turn_count(self) -> int:
        """Number of turns so far, those of another process included."""
        return self.earlier_turn_count + len(self.turns)

    def now(self) -> float:
        """Return the time in seconds; a turn takes a minute."""
        return FIRST_SECOND + 60 * self.turn_count

    def start_process(self) -> None:
        """Do what a new process does: build the pipeline, and open the session of the journal."""
        storage: Any = LocalStorage(self.root, clock=self.now)
        setting = self.setting
        self.pipeline = ContextPipeline(
            self.own_stages() if setting.stages == "own" else self.library_stages(storage),
            budget=Budget(
                window=2 * setting.trigger, trigger=setting.trigger, target=setting.target
            ),
            counter=self.token_count,
            thinking=setting.thinking,  # type: ignore[arg-type]
        )
        journal = storage if self.has_journal else None
        self.session = self.pipeline.session(
            "s", journal=journal, verify=setting.verify, clock=self.now
        )

    def library_stages(self, storage: Any) -> list[Any]:
        """Return the stages of the library, or of the preset that the setting names."""
        setting = self.setting
        preset_arguments: dict[str, Any] = {"summarize": self.summarize, "clock": self.now}
        if setting.stages == "chat":
            return presets.chat(storage, **preset_arguments)
        if setting.stages in PRESETS:
            if setting.stages == "lines":
                preset_arguments["old_exchanges"] = "lines"
            return presets.coding_agent(storage, work_dir=None, **preset_arguments)
        breaker: dict[str, Any] = {
            "retry": Retry(max_retries=0),
            "cooldown_seconds": 120,
            "clock": self.now,
        }
        direct: list[Any] = [DirectOffload(storage, min_chars=4 * setting.min_chars)]
        if hasattr(ctxpipe, "TrimReadBacks"):  # versions in which DirectOffload was two stages
            # Not imported: another version may have the class in another module.
            breaker_class = type(Compact(require_archive=False).breaker)
            breaker = {"breaker": breaker_class(**breaker)}
            direct.append(ctxpipe.TrimReadBacks(storage))
        gate_class: Any = type(BatchOffload(storage).gate)
        return [
            *direct,
            BatchOffload(storage, gate_class(setting.ratio), min_chars=setting.min_chars),
            Compact(self.summarize, storage, **breaker),
            SmartTruncate(storage, max_tokens=int(setting.trigger * setting.target_share)),
        ]

    def own_stages(self) -> list[Any]:
        """Return the simple stages of this script."""
        setting = self.setting
        return [
            Shorten(setting.min_chars),
            Summarize(self, setting.trigger),
            Truncate(setting.trigger),
        ]

    @property
    def summarizer_is_down(self) -> bool:
        """True in some turns, so that contexts are truncated as well."""
        return self.setting.bad_days and self.turn_count // 6 % 3 == 1

    async def summarize(self, messages: Sequence[Any], /) -> Any:
        """Summarize without a model. Raises RuntimeError while the summarizer is down."""
        if self.summarizer_is_down:
            raise RuntimeError("the summarizer is down")
        self.summaries += 1
        return await ExtractiveSummarizer(max_words=200)(messages)

    async def take_turn(self, history: Messages, move: str) -> Messages:
        """Return the context for *history*, and record it. If the turn fails, return *history*."""
        context = history
        reports = ["failed"]
        request_options: Mapping[str, Any] = {}
        tokens = 0
        notices: Sequence[str] = ()
        try:
            result: Any = await self.session.run(history)
            context = result.messages
            request_options = result.request_options
            tokens = result.tokens_after
            notices = result.notices
            reports = [f"{report.stage} {report.outcome.value}" for report in result.reports]
        except Exception as error:  # noqa: BLE001  both versions must fail alike
            request_options = {"error": type(error).__name__}
        self.is_doubled = self.has_hidden_gap(history, context, reports)
        texts = [self.text(message) for message in context]
        texts.append(self.text({"request_options": dict(request_options)}))
        digests = [digest(text) for text in texts]
        self.texts |= dict(zip(digests, texts, strict=True))
        spoken_blocks = [[message["role"], *spoken(message)] for message in context]
        unmarked_messages = [bare(message) for message in context]
        is_truncated = "SmartTruncate changed" in reports
        is_compacted = "Compact changed" in reports
        faults = []
        if is_refused(context, request_options):
            faults.append("refused")
        if move in CUTS and ends_early(history, context):
            faults.append("without newest")
        self.turns.append(
            {
                "sent": digests[:-1],
                "options": digests[-1],
                "spoken": digest(self.text(spoken_blocks)),
                "unmarked": digest(self.text(unmarked_messages)),
                "gaps": gap_count(history, context) + self.is_doubled,
                "move": move,
                "undone": any("is undone" in notice for notice in notices),
                "reports": reports,
                "summaries": self.summaries,
                "tokens": tokens,
                "is_too_long": is_truncated and tokens >= self.setting.trigger,
                "is_over_target": is_compacted and tokens > self.setting.target,
                "faults": faults,
            }
        )
        return context

    def has_hidden_gap(self, history: Messages, context: Messages, reports: Sequence[str]) -> bool:
        """Return True if messages right after a summary were truncated later.

        What the summary replaced and what was truncated are two gaps that look like one.
        """
        if "Compact changed" in reports or "Summarize changed" in reports:
            return False
        before = self.previous_new_messages
        self.previous_new_messages = [message for message in context if message not in history]
        is_truncated = "SmartTruncate changed" in reports or "Truncate changed" in reports
        return self.is_doubled or (
            is_truncated and any(message in before for message in self.previous_new_messages)
        )

    def text(self, message: object) -> str:
        """Return *message* as JSON, without the folder, and digests that depend on it."""
        encoded = json.dumps(message, default=as_sent)
        return DIGEST.sub("(digest)", encoded.replace(str(self.root), "ROOT"))

    def token_count(self, text: str) -> int:
        """Return a count of tokens that does not depend on the length of the folder's name."""
        return token_count(text.replace(str(self.root), "ROOT"))


def digest(text: str) -> str:
    """Return a short digest of *text*."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def is_refused(context: Messages, options: Mapping[str, Any]) -> bool:
    """Return True if the API would refuse thinking in *context*, bound to other messages."""
    body = options.get("extra_body", {})
    headers = options.get("extra_headers", {})
    messages = json.loads(json.dumps(context, default=as_sent))
    beta = headers.get("anthropic-beta", "")
    return bool(verify({"messages": messages, **body}, Model(), beta).problems)


def signed(context: Messages, messages: Messages) -> Messages:
    """Return *messages* with the thinking of each reply signed.

    The signatures are those of a model that was sent *context* before.
    """
    signed_messages: Messages = []
    for message in messages:
        blocks = blocks_of(message)
        if any(block["type"] in THINKING for block in blocks):
            request = {"messages": [*context, *signed_messages]}
            signed_messages.append({**message, "content": sign(request, blocks)})
        else:
            signed_messages.append(message)
    return signed_messages


def as_sent(block: Any) -> Any:
    """Return a block of the SDK as JSON values."""
    return block.model_dump()


def token_count(text: str) -> int:
    """Return a simple estimate of the tokens of *text*."""
    return len(text) // 4 + 1


def gap_count(history: Messages, context: Messages) -> int:
    """Return the number of separate parts of *history* that are missing from *context*."""
    indices: dict[object, list[int]] = {}
    for index, message in enumerate(history):
        indices.setdefault(identity(message), []).append(index)
    last = -1
    count = 0
    for message in context:
        later = [index for index in indices.get(identity(message), ()) if index > last]
        if later:
            count += later[0] > last + 1
            last = later[0]
    return count + (last + 1 < len(history))


def ends_early(history: Messages, context: Messages) -> bool:
    """Return True if *context* ends with a message of *history* that is not its newest."""
    last = identity(context[-1])
    identities = [identity(message) for message in history]
    return last != identities[-1] and last in identities


def identity(message: dict[str, Any]) -> object:
    """Return what stays the same when long texts of *message* go to files: ids and words."""
    parts = [
        block.get("id") or block.get("tool_use_id") or block.get("text") or block["type"]
        for block in blocks_of(message)
    ]
    return (message["role"], *parts)


def blocks_of(message: Any) -> Messages:
    """Return the content of *message* as blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def spoken(message: Any) -> Messages:
    """Return the blocks of *message* without thinking."""
    return [block for block in blocks_of(message) if block["type"] not in THINKING]


# Simple stages, which do the same in every version ------------------------------------------------


def size(messages: Sequence[Any]) -> int:
    """Return the estimated tokens of *messages*."""
    return sum(token_count(json.dumps(message)) for message in messages)


def changed_or_skipped(messages: Sequence[Any] | None) -> Any:
    """Return the answer of a stage: *messages* as the new context, or no change if None."""
    return Skip("nothing to do") if messages is None else Change(list(messages))


@dataclass(frozen=True)
class Shorten:
    """Replace long results by a line, three or more at a time; the newest message stays."""

    min_chars: int

    async def __call__(self, turn: Any) -> Any:
        messages = list(turn.messages)
        count = 0
        for index, message in enumerate(messages[:-1]):
            if not any(self.is_long(block) for block in message["content"]):
                continue
            blocks = [self.shortened(block) for block in message["content"]]
            messages[index] = {**message, "content": blocks}
            count += 1
        return changed_or_skipped(messages if count > 2 else None)

    def shortened(self, block: Any) -> Any:
        """Return *block* with its length in the place of a long content."""
        if not self.is_long(block):
            return block
        return {**block, "content": f"[{len(block['content'])} characters]"}

    def is_long(self, block: Any) -> bool:
        """Return True if *block* is a result with at least *min_chars* characters."""
        is_result = (
            isinstance(block, dict)
            and block["type"] == "tool_result"
            and isinstance(block["content"], str)
        )
        return is_result and len(block["content"]) >= self.min_chars


@dataclass(frozen=True)
class Summarize:
    """Replace the first three quarters by one message, above the trigger."""

    caller: Caller
    trigger: int

    async def __call__(self, turn: Any) -> Any:
        places = replies_after(turn.messages, 0.75)
        if size(turn.messages) < self.trigger or self.caller.summarizer_is_down or not places:
            return changed_or_skipped(None)
        self.caller.summaries += 1
        replaced = turn.messages[: places[0]]
        retained = turn.messages[places[0] :]
        replaced_digest = digest(
            json.dumps([bare(message) for message in replaced], default=as_sent)
        )
        summary = f"Summary {replaced_digest} of {len(replaced)} messages."
        return changed_or_skipped([{"role": "user", "content": summary}, *retained])


@dataclass(frozen=True)
class Truncate:
    """Remove turns of the middle, above the trigger."""

    trigger: int

    async def __call__(self, turn: Any) -> Any:
        starts = replies_after(turn.messages, 0.3)
        ends = replies_after(turn.messages, 0.6)
        if size(turn.messages) < self.trigger or not starts or not ends or starts[0] == ends[0]:
            return changed_or_skipped(None)
        return changed_or_skipped([*turn.messages[: starts[0]], *turn.messages[ends[0] :]])


def replies_after(messages: Sequence[Any], share: float) -> list[int]:
    """Return the indices of the replies after the first *share* of *messages*."""
    start = max(2, int(share * len(messages)))
    return [
        index for index in range(start, len(messages)) if messages[index]["role"] == "assistant"
    ]


# Random lives -------------------------------------------------------------------------------------


class Life:
    """A random conversation. It follows from the seed and from the contexts that are adopted."""

    def __init__(self, seed: int, stages: str, with_journal: bool) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.text_count = 0
        pick = self.random.choice
        setting = Setting(
            stages=stages,
            trigger=pick(TRIGGERS),
            target_share=pick((0.3, 0.5, 0.8)),
            thinking=pick(("keep", "keep", "strip", "protect")),
            min_chars=pick((60, 300, 1_000)),
            ratio=pick((0.05, 0.2, 0.5)),
            verify=pick((False, False, True)),
            bad_days=pick((False, True)),
        )
        has_journal = pick((False, True)) or with_journal
        self.caller = Caller(setting, has_journal=has_journal, name=f"life-{seed}")
        self.history: Messages = [{"role": "user", "content": self.words()}]
        self.context = list(self.history)
        self.moves = ["append"] * 20 + ["branch", "cut", "rebuild", "mark"]
        self.moves += self.random.choice(
            (
                ["adopt", "adopt and cut"],
                ["new process"] * 2,
                ["adopt", "adopt and cut", "new process"],
            )
        )
        self.move_count = self.random.randrange(20, 100)
        self.number = 0  # of the next move

    async def run(self, *, to_middle: bool) -> None:
        """Play the moves from the next one on, to the middle or to the end of the conversation."""
        end = self.move_count // 2 if to_middle else self.move_count
        for _ in range(self.number, end):
            move = self.random.choice(self.moves)
            self.make_move(move)
            self.context = list(await self.caller.take_turn(self.history, move))
        self.number = end

    def state(self) -> dict[str, Any]:
        """Return what another process needs to continue."""
        return {
            "caller": self.caller.state(),
            "random": self.random.getstate(),
            "number": self.number,
            "text_count": self.text_count,
            "history": self.history,
            "context": self.context,
        }

    async def resume(self, state: dict[str, Any]) -> None:
        """Continue from *state*; the last turn of the other process is taken once more."""
        self.caller.resume(state["caller"])
        version, numbers, gauss_next = state["random"]
        self.random.setstate((version, tuple(numbers), gauss_next))
        self.number = state["number"]
        self.text_count = state["text_count"]
        self.history = state["history"]
        self.context = list(await self.caller.take_turn(self.history, "resume"))

    def make_move(self, move: str) -> None:
        """Change the history, or start a new process, as *move* says."""
        if move in ADOPTIONS:
            self.history = list(self.context)
        if move == "rebuild":
            self.history = copy.deepcopy(self.history)
        if move == "mark":
            self.move_cache_mark()
        # Without a journal a new process could not know what thinking is bound to.
        if move == "new process" and self.caller.has_journal:
            self.caller.start_process()
        if move in CUTS:
            self.cut()
        else:
            length = len(self.history)
            for _ in range(self.random.choice((1, 1, 1, 3))):
                messages_before = [*self.context, *self.history[length:]]
                self.history += signed(messages_before, self.exchange())
        if move == "branch":
            blocks = [*blocks_of(self.history[-1]), text(self.words())]
            self.history[-1:] = [{"role": "user", "content": blocks}]

    def cut(self) -> None:
        """Go back to any message of the user, which may be one with results."""
        ends = [
            index + 1 for index, message in enumerate(self.history) if message["role"] == "user"
        ]
        self.history = self.history[: self.random.choice(ends or [1])]

    def move_cache_mark(self) -> None:
        """Move the cache mark to the newest message, in copies of the messages or in place."""
        if self.random.randrange(2):
            self.history = copy.deepcopy(self.history)
        blocks = [
            block
            for message in self.history
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        for block in blocks:
            block.pop("cache_control", None)
        for block in blocks[-1:]:
            block["cache_control"] = {"type": "ephemeral"}

    def exchange(self) -> Messages:
        """Return a reply, and the results of its calls or the next words of the user."""
        calls = [self.call() for _ in range(self.random.choice((0, 1, 1, 1, 2)))]
        thinking = [{"type": "thinking", "thinking": self.words(), "signature": ""}] * (
            self.text_count % 4 == 0
        )
        texts = [text(self.words())] if not calls or self.random.randrange(2) else []
        if not calls:
            return [reply([*thinking, *texts]), {"role": "user", "content": self.words()}]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": self.words(400)}
            for call in calls
        ]
        return [reply([*thinking, *texts, *calls]), {"role": "user", "content": results}]

    def call(self) -> dict[str, Any]:
        """Return a new tool call."""
        self.text_count += 1
        return {
            "type": "tool_use",
            "id": f"toolu_{self.text_count}",
            "name": "bash",
            "input": {"command": self.words(8)},
        }

    def words(self, max_repeats: int = 30) -> str:
        """Return a new text of random length."""
        self.text_count += 1
        return f"number {self.text_count}" + " and so on" * self.random.randrange(max_repeats)


def text(words: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": words}


def reply(blocks: Messages) -> dict[str, Any]:
    """Return a message of the model."""
    return {"role": "assistant", "content": blocks}


if __name__ == "__main__":
    sys.exit(main())
