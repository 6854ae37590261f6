"""The commands ``ctxpipe replay`` and ``ctxpipe inspect``."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import anyio
import typer
from rich.console import Console
from rich.progress import Progress

from .. import __version__
from .._text import as_number, as_percent, as_ratio, count_phrase
from .._values import JsonDict
from ..errors import CtxpipeError, SettingsError, TranscriptError
from ..providers.prices import Prices, find_prices
from ..settings import EXAMPLE_MODEL
from ..stages.reports import Outcome, Result
from ..tokens import TokenCounter
from .batch import FileReplay, Reporter, cluster, replay_files, workers
from .cache import HEADINGS, CacheReport, cache_report, rows, total_report
from .contents import Contents, contents, total_contents
from .narration import narrate
from .page import page
from .policies import NONE, POLICIES, policies
from .replay import LAPSES_EVERY, PipelineMaker, Settings
from .report import DOLLARS, FIGURES, Figures, figures
from .terminal import (
    SHOWN,
    print_error,
    print_figures,
    print_json,
    print_line,
    print_notice,
    print_table,
)
from .transcripts import STDIN, Transcript, read_transcript
from .workbench import Workbench

PRESET = "coding"
NAMED_FILES = 2  # of those that a command was given

Files = Annotated[
    list[str],
    typer.Argument(
        help="Transcripts (JSON, JSONL), or folders, of which all transcripts in them "
        "are read; - is standard input.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Model = Annotated[
    str,
    typer.Option(help=f"Whose prices to take, such as {EXAMPLE_MODEL}; default: in input tokens."),
]
ReadPrice = Annotated[
    float | None,
    typer.Option(
        "--read",
        help="The price of a cached token, relative to an input token; default: the model's, "
        "without --model 0.1.",
        max=1,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Lines that a stage has chosen to keep count as unseen: what is only there is "
        "read back.",
    ),
]
Processes = Annotated[
    int | None, typer.Option(help="How many; default: one for each processor.", min=1)
]
Scheduler = Annotated[
    str,
    typer.Option(help="The address of a Dask cluster that does the work, such as tcp://host:8786."),
]


def replay(
    files: Files,
    compare: Annotated[
        str,
        typer.Option(
            help=f"Policies to compare, separated by commas: {', '.join(POLICIES)}, or a pipeline "
            f"of your own in a FILE.toml; default: {NONE},{PRESET}."
        ),
    ] = f"{NONE},{PRESET}",
    model: Model = "",
    read: ReadPrice = None,
    strict: Strict = False,
    processes: Processes = None,
    scheduler: Scheduler = "",
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page: the policies side by side, turn by turn, and what each tool costs. "
            "All files are on the one page."
        ),
    ] = None,
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="Print every figure, with a column for a policy.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay conversations turn by turn: what they cost, and what the agent still sees.

    The first policy (none, unless --compare begins otherwise) is the baseline of the others.
    """
    prices = _prices(model, read)
    # Each is tried once, so that an invalid one is reported before the work begins.
    makers = policies(map(str.strip, compare.split(",")), prices)
    found = recordings(files)
    reporter: Reporter | None = None
    if html:
        # Replaying may take minutes: a page that cannot be written is an error before.
        is_new = not html.exists()
        _write_page(html, "", "a")
        if is_new:  # it may be interrupted
            html.resolve().unlink()
        reporter = partial(narrate, prices=prices if model else None)
    count = min(processes or os.cpu_count() or 1, len(found.files))
    at_work = cluster(scheduler) if scheduler else workers(count)
    with at_work as executor, _progress() as progress:
        task = progress.add_task("replaying", total=len(found.files))
        replays = replay_files(
            found.files,
            makers,
            Settings(rest_every=LAPSES_EVERY, strict=strict),
            executor=executor,
            reporter=reporter,
            progress=lambda _file: progress.advance(task),
        )
    by_file = {file.path: figures([file.replays], prices) for file in replays}
    totals = figures([file.replays for file in replays], prices)
    unit = DOLLARS if model else "input tokens"
    made = _describe_making(files, f"prices of {model}" if model else "costs in input tokens")
    good = [file for file in replays if not file.error]
    failed = [file for file in replays if file.error]
    if as_json:
        print_json(
            {
                "made": made,
                "unit": unit,
                "files": {it.path: list(map(asdict, by_file[it.path])) for it in good},
                "read": {file.path: file.as_json() for file in good},
                "all": list(map(asdict, totals)),
                "errors": {file.path: file.error for file in failed},
                "skipped": found.unreadable,
            }
        )
    else:
        _print_replays(good, by_file, totals, unit, model, all_columns=all_columns)
        if prices.write_1h > prices.write:  # elsewhere there are no such marks
            _print_hours(totals)
        if good:
            print_line(made)
    for file in failed:
        print_error(file.error)
    reports = [file.report for file in good if file.report]
    if html and reports:
        _write_page(html, page(reports, totals, unit, made), "w")
        print_notice(f"page: {html}")
    if failed:
        raise typer.Exit(1)


def _describe_making(files: Sequence[str], prices: str) -> str:
    """What made a report, when, by which command, and whose *prices* it takes."""
    others = files[NAMED_FILES:]  # a shell may have named a hundred
    command = shlex.join(["ctxpipe", *(word for word in sys.argv[1:] if word not in others)])
    if others:
        command += f", and {len(others)} more"
    return f"ctxpipe {__version__}, {time.strftime('%Y-%m-%d')}, {prices}: {command}"


def _write_page(html: Path, text: str, mode: str) -> None:
    """Write *text* into the page, or with the *mode* "a" after what is in it.

    Raises SettingsError.
    """
    try:
        with html.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"--html: {html} cannot be written: {reason}") from error


def _progress() -> Progress:
    """A progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _print_replays(
    read: Sequence[FileReplay],
    by_file: Mapping[str, Sequence[Figures]],
    totals: Sequence[Figures],
    unit: str,
    model: str,
    *,
    all_columns: bool,
) -> None:
    costs = f"cost in {unit}, {model}" if model else f"cost in {unit}"
    for file in read:
        faults = f"; {count_phrase(file.repaired, 'fault')} repaired" if file.repaired else ""
        title = f"{_display_name(file.path)} ({costs}{faults})"
        print_figures(title, by_file[file.path], unit, all_columns=all_columns)
        if file.calibration:
            print_line(str(file.calibration))
            print_line("")
    if len(read) > 1:
        title = f"all {len(read)} conversations ({costs})"
        print_figures(title, totals, unit, all_columns=all_columns)
        billed = [file.calibration for file in read if file.calibration]
        if billed:
            print_line(str(sum(billed[1:], billed[0])))
    for name, meaning in FIGURES.items() if read else ():
        if name in SHOWN or all_columns:
            print_line(f"{name:7}  {meaning}")


def _print_hours(totals: Sequence[Figures]) -> None:
    """Print what cache marks for an hour would have cost, and whether to place them."""
    for row in totals:
        advice = "place them, cache_seconds=3600" if row.hour < 1 else "do not place them"
        ratio = as_ratio(row.hour)
        print_line(f"{row.policy}: marks for an hour would cost {ratio} times as much: {advice}")


def _display_name(path: str) -> str:
    return "standard input" if path == STDIN else Path(path).name


def inspect(
    files: Files,
    most: Annotated[int, typer.Option(help="How many of the largest blocks to list.", min=0)] = 10,
    cache: Annotated[
        bool, typer.Option("--cache", help="Why the prompt cache missed, by the bills in the file.")
    ] = False,
    plan: Annotated[
        str,
        typer.Option(
            help="What this policy, or the pipeline of a TOML file, would change at the end."
        ),
    ] = "",
    model: Model = "",
    as_json: AsJson = False,
) -> None:
    """What fills the context: by kind, by tool, and the largest blocks.

    Tokens are tiktoken's, exact. With --cache: what was not read from the prompt cache, and why;
    tokens are billed ones, and the prices those of each reply's model, or of --model. With --plan:
    what each stage would do at the end of the transcript, without doing it.
    """
    if cache and plan:
        raise SettingsError("give --cache or --plan, not both")
    prices = _prices(model, None) if model else None
    found = recordings(files)
    whose = f"prices of {model or 'the model of each reply'}" if cache else "tokens of tiktoken"
    inspect_each = partial(_inspect_each, found, _describe_making(files, whose), as_json)
    if plan:
        [make] = policies([plan]).values()
        inspect_each(partial(_plan, make=make), _print_plan, _total_plan)
    elif cache:
        look = partial(cache_report, counter=TokenCounter(), prices=prices)
        inspect_each(look, _print_cache, partial(total_report, prices=prices))
    else:
        fill = partial(contents, counter=TokenCounter(), most=most)
        inspect_each(fill, _print_contents, partial(total_contents, most=most))


class _Shown(Protocol):
    """A view of a conversation that can be printed as JSON."""

    def as_json(self) -> JsonDict: ...


S = TypeVar("S", bound=_Shown)


def _inspect_each(
    found: Recordings,
    made: str,
    as_json: bool,
    look: Callable[[Transcript], S],
    show: Callable[[str, S], None],
    add: Callable[[Iterable[S]], S],
) -> None:
    """Print what *look* finds in each file and, of several, what *add* makes of them together.

    *made* says what made the report.
    """
    shown: dict[str, S] = {}
    errors: dict[str, str] = {}
    with _progress() as progress:
        for path in progress.track(found.files, description="reading"):
            try:
                shown[path] = look(read_transcript(path))
            except CtxpipeError as error:
                errors[path] = str(error)
    if as_json:
        print_json(
            {
                "made": made,
                "files": {path: one.as_json() for path, one in shown.items()},
                "all": add(shown.values()).as_json(),
                "errors": errors,
                "skipped": found.unreadable,
            }
        )
    else:
        for path, one in shown.items():
            show(_display_name(path), one)
        if len(shown) > 1:
            show(f"all {len(shown):,} conversations", add(shown.values()))
        if shown:
            print_line(made)
    for text in errors.values():
        print_error(text)
    if errors:
        raise typer.Exit(1)


def _print_contents(name: str, filling: Contents) -> None:
    total = filling.kinds.total() or 1
    kinds = filling.kinds.most_common()
    shares = [(kind, as_number(n), as_percent(n / total)) for kind, n in kinds]
    print_table(f"{name}: {filling}", ("what", "tokens", "share"), shares)
    if filling.tools:
        tools = [(tool, as_number(calls), as_number(n)) for tool, calls, n in filling.by_tool]
        print_table("by tool", ("tool", "calls", "tokens"), tools)
    blocks = [
        (_display_name(it.file), f"{it.message}", it.what, as_number(it.tokens), it.begins)
        for it in filling.largest
    ]
    headings = ("file", "message", "what", "tokens", "begins")
    first = 1 if filling.format else 0  # several conversations have no format in common
    print_table("largest blocks", headings[first:], [block[first:] for block in blocks])


def _print_cache(name: str, report: CacheReport) -> None:
    if report.tallies:
        print_table(f"{name}: {report}", HEADINGS, rows(report.tallies))
    else:
        print_line(f"{name}: {report}; it missed nothing that it could hold.")
    if report.shortened:
        times = count_phrase(report.shortened, "time")
        print_line(f"{times} the client sent far less than the recorded history: not judged.")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of each stage: its name, "would act", and what or why; and the tokens *saved*."""

    stages: list[dict[str, str]]
    saved: int

    def as_json(self) -> JsonDict:
        return asdict(self)


def _plan(transcript: Transcript, make: PipelineMaker) -> _Plan:
    """The plan of the pipeline that *make* makes, at the end of *transcript*."""
    plan = partial(
        make(Workbench()).plan, session_id="plan", system=transcript.system, tools=transcript.tools
    )
    result: Result = anyio.run(plan, transcript.messages)
    stages = []
    for report in result.reports:
        outcome = "would act" if report.outcome is Outcome.PLANNED else report.outcome.value
        why = report.reason or str(report.detail or "")
        stages.append({"stage": report.stage, "outcome": outcome, "why": why})
    return _Plan(stages, result.tokens_saved)


def _total_plan(plans: Iterable[_Plan]) -> _Plan:
    return _Plan([], sum(plan.saved for plan in plans))


def _print_plan(name: str, plan: _Plan) -> None:
    title = f"{name}: {as_number(plan.saved)} tokens would leave"
    if plan.stages:
        plans = [tuple(stage.values()) for stage in plan.stages]
        print_table(title, ("stage", "outcome", "what, why"), plans)
    else:
        print_line(title)


def _prices(model: str, read: float | None) -> Prices:
    prices = find_prices(model) if model else Prices.relative()
    if prices is None:
        raise SettingsError(
            f"no prices are known for the model {model!r}; "
            "without --model costs are in input tokens"
        )
    return prices if read is None else replace(prices, read=read * prices.input)


SUFFIXES = (".json", ".jsonl")
MOST_REASONS = 5


@dataclass(slots=True)
class Recordings:
    """The *files* to read, and what was skipped in folders.

    *unreadable* has the reason by path; *others* are the files that are neither JSON nor JSONL.
    """

    files: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def describe_skipped(self) -> str:
        """The skipped files, for a reader; "" where there are none."""
        kinds = {
            "without a conversation that can be read": len(self.unreadable),
            "neither JSON nor JSONL": len(self.others),
        }
        parts = [f"{count_phrase(n, 'file')} {what}" for what, n in kinds.items() if n]
        if not parts:
            return ""
        lines = [f"skipped: {', '.join(parts)}", *self.unreadable.values()]
        more = len(lines) - 1 - MOST_REASONS
        if more > 0:
            lines[1 + MOST_REASONS :] = [f"and {more:,} more"]
        return "\n  ".join(lines)


def recordings(names: Iterable[str]) -> Recordings:
    """The recordings that *names* stand for, files and folders; what was skipped is said.

    A folder is searched to the bottom, without what is hidden in it; each JSON and JSONL file in it
    that holds a conversation is a recording. Raises TranscriptError for a folder that holds none.
    """
    found = Recordings()
    with _progress() as progress:
        for path in names:
            if os.path.isdir(path):
                found.files += _search(path, found, progress)
            else:
                found.files.append(path)
    found.files = list(dict.fromkeys(found.files))
    skipped = found.describe_skipped()
    if skipped:
        print_notice(skipped)
    return found


def _search(folder: str, found: Recordings, progress: Progress) -> list[str]:
    """The recordings in *folder*; what is none is noted in *found*."""
    candidates = []
    for path in _walk(folder, found):
        if path.lower().endswith(SUFFIXES):
            candidates.append(path)
        else:
            found.others.append(path)
    recordings = []
    for path in progress.track(candidates, description="looking"):
        try:
            read_transcript(path)
        except CtxpipeError as error:
            found.unreadable[path] = str(error)
        else:
            recordings.append(path)
    if not recordings:
        rest = found.describe_skipped() or "it is empty"
        raise TranscriptError(f"{folder} holds no recording that can be read; {rest}")
    return recordings


def _walk(folder: str, found: Recordings) -> Iterator[str]:
    """The regular files below *folder*, in the order of their names."""

    def note(error: OSError) -> None:
        found.unreadable[str(error.filename)] = f"{error.filename}: {error.strerror}"

    for parent, folders, files in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path
