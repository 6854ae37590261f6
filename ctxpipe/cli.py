"""The laboratory's commands: see what a context costs and forgets, on recorded conversations of
your own.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.progress import Progress
except ImportError as missing:  # pragma: no cover  the extra is there when tests run
    raise SystemExit(f"the command needs {missing.name}: pip install 'ctxpipe[cli]'") from missing

from .errors import CtxpipeError, SettingsError
from .lab import tables
from .lab import tune as tuning
from .lab.batch import FileReplay, Workers, replay_files, workers
from .lab.cluster import cluster
from .lab.config import read_config
from .lab.page import page_paths, write_page
from .lab.policies import NONE, POLICIES, WINDOW, policies
from .lab.replay import LAPSES_EVERY, PipelineMaker, Settings
from .lab.replay_report import Pages
from .lab.terminal import (
    LEGEND,
    accept_any_character,
    complain,
    drop_output,
    print_figures,
    print_json,
    print_line,
    print_table,
    tell,
    tuned_text,
    unit,
)
from .lab.transcripts import STDIN, Transcript, read_transcript
from .lab.workbench import Workbench
from .messages import strings
from .names import session_folder
from .placeholders import named_files
from .prices import Prices, prices_of
from .reports import Outcome
from .storage.adoption import adopt as mark_adopted
from .storage.adoption import find_unmarked
from .storage.atomic import STALE_SECONDS
from .storage.cleanup import (
    Limits,
    OwnFile,
    choose_files,
    delete_files,
    drop_empty_folders,
    find_files,
    is_owned,
    session_files,
)
from .storage.ownership import Mark, StorageRoot
from .tokens import TokenCounter
from .words import counted, one_line

__all__ = ["app", "main"]

app = typer.Typer(
    help="See what an agent's context costs and what it forgets, on recorded conversations of your own.\n\n"
    "Exit codes: 0 all is well, 1 a file failed, 2 the command was misused, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

# What a stage warns an agent's keeper of is no news about a recording.
logging.getLogger("ctxpipe").addHandler(logging.NullHandler())

Files = Annotated[
    list[str],
    typer.Argument(help="Transcripts (JSON, JSONL); - is standard input.", show_default=False),
]
File = Annotated[
    str,
    typer.Argument(help="A transcript (JSON or JSONL); - is standard input.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Preset = Annotated[str, typer.Option(help=f"What to try: {', '.join(POLICIES)}.")]
Config = Annotated[
    Path | None, typer.Option(help="A pipeline of your own, in TOML, instead of a preset.")
]
Model = Annotated[
    str,
    typer.Option(help="Whose prices to take, such as claude-opus-4-5; default: in input tokens."),
]
ReadPrice = Annotated[
    float | None,
    typer.Option(
        "--read",
        help="The price of a cached token, in that of an input token; default: the model's, without --model 0.1.",
    ),
]
Refetch = Annotated[bool, typer.Option(help="Price what the agent has to read again.")]
Rest = Annotated[
    int,
    typer.Option(
        help="Where a transcript tells no times, the prompt cache lapses before each so-manieth call, as real sessions "
        "pause; 0: never.",
        min=0,
    ),
]
Processes = Annotated[
    int | None, typer.Option(help="How many; default: one for each processor.", min=1)
]
Scheduler = Annotated[
    str,
    typer.Option(
        help="The address of a Dask cluster that is to do the work, such as tcp://host:8786."
    ),
]


@app.command(epilog=LEGEND.replace("\n", "\n\n"))
def replay(
    files: Files,
    compare: Annotated[str, typer.Option(help="Policies to compare, separated by commas.")] = "",
    preset: Preset = "coding",
    config: Config = None,
    model: Model = "",
    read: ReadPrice = None,
    refetch: Refetch = True,
    rest: Rest = LAPSES_EVERY,
    processes: Processes = None,
    scheduler: Scheduler = "",
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page: the last policy beside the first, turn by turn. Of several files each gets a page of "
            "its own, named after both: report-FILE.html for report.html.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay conversations through a pipeline, turn by turn as in life: what they cost, what the
    agent still sees.

    The first policy (none, unless --compare begins otherwise) is what the others are measured by.
    """
    with _told():
        prices = _prices(model, read)
        makers = _makers(compare, preset, config, prices)
        pages_go = _writable(html, files) if html else {}
        first, *_, last = *makers, *makers
        pages = Pages(last, first, prices if model else None) if html else None
        with _hands(scheduler, processes, len(files)) as hands:
            done = _replayed(
                files, makers, Settings(refetch=refetch, rest_every=rest), hands, pages
            )
        _print_replays(done, prices, model, first, as_json=as_json)
        _write_pages(pages_go, done)
    raise typer.Exit(FAILED if any(file.error for file in done) else 0)


def _makers(
    compare: str, preset: str, config: Path | None, prices: Prices
) -> dict[str, PipelineMaker]:
    """What to replay through, by name.

    Each is tried once, so that nonsense is told before the work begins.
    """
    names = [name.strip() for name in compare.split(",") if name.strip()] or [NONE, preset]
    if config is not None and not compare:
        names = [NONE]
    makers: dict[str, PipelineMaker] = {**policies(dict.fromkeys(names), prices)}
    for make in makers.values():
        make(Workbench())
    if config is None:
        return makers
    own = config.name if config.stem in POLICIES else config.stem
    return {**makers, own: read_config(config, prices)}


def _hands(scheduler: str, processes: int | None, files: int) -> AbstractContextManager[Workers]:
    if scheduler:
        return cluster(scheduler)
    return workers(min(processes or os.cpu_count() or 1, files))


def _replayed(
    files: Sequence[str],
    makers: Mapping[str, PipelineMaker],
    settings: Settings,
    hands: Workers,
    pages: Pages | None,
) -> list[FileReplay]:
    with _progress() as progress:
        task = progress.add_task("replaying", total=len(set(files)))

        def advance(_file: FileReplay) -> None:
            progress.advance(task)

        return replay_files(files, makers, settings, hands=hands, pages=pages, progress=advance)


def _writable(html: Path, files: Sequence[str]) -> dict[str, Path]:
    """Where each file's page goes.

    Told now if it cannot be written there, since replaying may take minutes.
    """
    paths = page_paths(html, files)
    for path in paths.values():
        if path.is_dir():
            raise SettingsError(f"--html: {path} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise SettingsError(
                f"--html: {path} cannot be written: there is no folder {path.parent}"
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise SettingsError(f"--html: {path} cannot be written: permission is denied")
    return paths


def _write_pages(paths: Mapping[str, Path], done: Sequence[FileReplay]) -> None:
    reports = {file.path: file.report for file in done if file.report is not None}
    for file, report in reports.items():
        path = paths[file]
        try:
            write_page(path, report)
        except OSError as error:
            raise SettingsError(
                f"--html: {path} cannot be written: {error.strerror or error}"
            ) from error
        tell(f"page: {path}")


def _progress() -> Progress:
    """A bar on standard error, where that is a terminal."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _print_replays(
    done: Sequence[FileReplay], prices: Prices, model: str, baseline: str, *, as_json: bool
) -> None:
    read = {file.path: file for file in done if file.replays}
    rows = {path: tables.figures(file.replays, prices, baseline) for path, file in read.items()}
    everything = tables.summed(done, prices, baseline)
    errors = {file.path: file.error for file in done if file.error}
    if as_json:
        print_json(
            {
                "unit": "dollars" if model else "input tokens",
                "files": {path: [row.as_json() for row in found] for path, found in rows.items()},
                "read": {path: tables.file_json(file) for path, file in read.items()},
                "all": [row.as_json() for row in everything],
                "errors": errors,
            }
        )
    else:
        for path, file in read.items():
            print_figures(_title(file, model), rows[path], file.calibration, dollars=bool(model))
        if len(read) > 1:
            title = f"all {len(read)} conversations ({unit(model)})"
            print_figures(title, everything, tables.calibrated(read.values()), dollars=bool(model))
        if read:
            print_line(LEGEND)
    for error in errors.values():
        complain(error)


def _title(file: FileReplay, model: str) -> str:
    mended = f"; {counted(file.repaired, 'fault')} mended" if file.repaired else ""
    name = "standard input" if file.path == STDIN else Path(file.path).name
    return f"{name} ({unit(model)}{mended})"


@app.command()
def tune(
    files: Files,
    recall: Annotated[
        float, typer.Option(help="The share of what replies use that the context must show.")
    ] = 0.9,
    budget: Annotated[
        int, typer.Option(help="At most so many replays: one file through one pipeline.", min=1)
    ] = 400,
    folds: Annotated[
        int, typer.Option(help="How often to choose without some files, and test on those.", min=2)
    ] = 3,
    seed: Annotated[int, typer.Option(help="Another seed draws other candidates.")] = 0,
    window: Annotated[
        int, typer.Option(help="The model's context window, in tokens.", min=1000)
    ] = WINDOW,
    model: Model = "",
    read: ReadPrice = None,
    refetch: Refetch = True,
    rest: Rest = LAPSES_EVERY,
    processes: Processes = None,
    scheduler: Scheduler = "",
    as_json: AsJson = False,
) -> None:
    """Search the settings that cost least and still show the agent enough, by your own
    conversations.

    Prints TOML that --config reads, the Pareto front and the test on conversations held out in its
    comments: ctxpipe tune FILES > pipeline.toml. Where no settings show enough, those that show
    most are printed, and the exit code is 1.
    """
    with _told():
        prices = _prices(model, read)
        settings = Settings(refetch=refetch, rest_every=rest)
        with _hands(scheduler, processes, len(files)) as hands, _progress() as progress:
            evaluate = _evaluated(settings, hands, progress, budget)
            tuned = tuning.tune(
                files,
                evaluate,
                prices=prices,
                recall=recall,
                folds=folds,
                budget=budget,
                seed=seed,
                window=window,
            )
    _print_tuned(tuned, model, recall, as_json=as_json)
    raise typer.Exit(FAILED if tuned.errors or not tuned.reached else 0)


def _evaluated(
    settings: Settings, hands: Workers, progress: Progress, budget: int
) -> tuning.Evaluate:
    """What replays files through makers, and shows how much of the *budget* that took."""
    task = progress.add_task("replaying", total=budget)

    def evaluate(paths: Sequence[str], makers: Mapping[str, PipelineMaker]) -> list[FileReplay]:
        def advance(_file: FileReplay) -> None:
            progress.advance(task, len(makers))

        return replay_files(paths, makers, settings, hands=hands, progress=advance)

    return evaluate


def _print_tuned(tuned: tuning.Tuned, model: str, recall: float, *, as_json: bool) -> None:
    if as_json:
        print_json(tables.tuned_json(tuned))
    else:
        print_line(tuned_text(tuned, model, recall))
    for error in tuned.errors:
        complain(error)
    if not tuned.reached:
        complain(
            f"no settings that were tried reach a recall of {recall}; these reach {tuned.chosen.score.recall:.3f}"
        )


@app.command()
def inspect(
    file: File,
    most: Annotated[int, typer.Option(help="How many of the largest blocks to list.", min=0)] = 10,
    as_json: AsJson = False,
) -> None:
    """What fills the context: by kind, by tool, and the largest blocks.

    Tokens are tiktoken's, exact.
    """
    with _told():
        transcript = read_transcript(file)
        counter = TokenCounter()
        kinds = tables.tokens_by_kind(transcript.messages, counter)
        tools = tables.tokens_by_tool(transcript.messages, counter)
        largest = tables.largest_blocks(transcript.messages, counter, most)
    if as_json:
        blocks = [{**asdict(block), "begins": one_line(block.begins)} for block in largest]
        print_json({"name": transcript.name, "kinds": kinds, "tools": tools, "largest": blocks})
        return
    total = sum(kinds.values())
    _print_shares(_heading(transcript, total), kinds.most_common())
    if tools:
        print_table(
            "by tool",
            ("tool", "calls", "tokens"),
            [(name, f"{n:,}", f"{t:,}") for name, n, t in tools],
        )
    shown = [(f"{b.message}", b.what, f"{b.tokens:,}", one_line(b.begins)) for b in largest]
    print_table("largest blocks", ("message", "what", "tokens", "begins"), shown)


def _heading(transcript: Transcript, total: int) -> str:
    mended = f", {counted(len(transcript.repaired), 'fault')} mended" if transcript.repaired else ""
    messages = (
        f"{counted(len(transcript.messages), 'message')}, {counted(transcript.calls, 'call')}"
    )
    return f"{Path(transcript.name).name}: {transcript.format}, {messages}, {counted(total, 'token')}{mended}"


@app.command()
def plan(
    file: File, preset: Preset = "coding", config: Config = None, as_json: AsJson = False
) -> None:
    """What a pipeline would change in the context as it stands at the end, without doing it."""
    import anyio

    with _told():
        prices = Prices.relative()
        transcript = read_transcript(file)
        maker = read_config(config, prices) if config else policies([preset], prices)[preset]
        pipeline = maker(Workbench())

        async def planned() -> Any:
            return await pipeline.plan(
                transcript.messages,
                session_id="plan",
                system=transcript.system,
                tools=transcript.tools,
            )

        result = anyio.run(planned)
        saved = pipeline.counter.total(transcript.messages) - pipeline.counter.total(
            result.messages
        )
    rows = [
        (
            report.stage,
            "would act" if report.outcome is Outcome.PLANNED else report.outcome.value,
            report.reason or str(report.detail or ""),
        )
        for report in result.reports
    ]
    if as_json:
        stages = [{"stage": stage, "outcome": outcome, "why": why} for stage, outcome, why in rows]
        print_json({"stages": stages, "saved": saved})
        return
    title = f"{Path(transcript.name).name}: {saved:,} tokens would leave"
    print_table(title, ("stage", "outcome", "what, why"), rows)


@app.command()
def clean(
    root: Annotated[
        Path,
        typer.Argument(help="The folder of a LocalStorage, such as .ctxpipe.", show_default=False),
    ],
    max_mb: Annotated[float | None, typer.Option(help="Keep at most so many megabytes.")] = None,
    max_days: Annotated[
        float | None, typer.Option(help="Keep nothing older than so many days.")
    ] = None,
    live: Annotated[
        list[str] | None, typer.Option(help="A transcript whose placeholders keep their files.")
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Delete archives and journals too.")
    ] = False,
    session: Annotated[
        str | None, typer.Option(help="Delete all files of this one session instead.")
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Mark what version 0.1 has left in the folder, as far as it can be proven.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted; change nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask. Needed where there is no terminal.")
    ] = False,
) -> None:
    """Delete the oldest files that ctxpipe has written, and no file of anybody else.

    A session whose journal is younger than --max-days stays whole; without --max-days every session
    with a journal does.
    """
    with _told():
        limits = _clean_limits(max_mb, max_days, live or (), records=records)
        limited = max_mb is not None or max_days is not None
        if session is not None and (limited or live or records):
            raise SettingsError(
                "--session deletes a whole session; leave out --max-mb, --max-days, --live, --records"
            )
        if not (limited or adopt or session is not None):
            raise SettingsError("nothing to do: give --max-mb, --max-days, --session or --adopt")
        if not root.is_dir():
            raise SettingsError(f"{root} is no folder")
        folder = StorageRoot(os.path.abspath(root))
        adopted = _adopted(folder, adopt=adopt, dry_run=dry_run)
        if session is not None:
            files = session_files(folder, session_folder(session), adopted)
        else:
            files = (
                choose_files(find_files(folder, adopted), limits, time.time()) if limited else []
            )
        if dry_run:
            _list_files(folder, files)
            return
        if files and not yes:
            _ask_to_delete(root, files)
        cleaned = delete_files(folder, files)
        if session is not None:
            folder.drop(session_folder(session))
        drop_empty_folders(folder, time.time() - STALE_SECONDS)
    print_line(f"files deleted: {len(cleaned.files):,}, bytes freed: {cleaned.bytes:,}")


def _clean_limits(
    max_mb: float | None, max_days: float | None, live: Sequence[str], *, records: bool
) -> Limits:
    max_bytes = _limit("--max-mb", max_mb, 1_000_000)
    max_age = _limit("--max-days", max_days, 86_400)
    messages = (message for path in live for message in read_transcript(path).messages)
    kept = {name for message in messages for text in strings(message) for name in named_files(text)}
    return Limits(None if max_bytes is None else round(max_bytes), max_age, records, kept)


def _adopted(folder: StorageRoot, *, adopt: bool, dry_run: bool) -> Mapping[str, Mark]:
    """What is found to be ctxpipe's without a mark, which is written unless this is a dry run."""
    adopted = find_unmarked(folder) if adopt else {}
    is_empty = not os.listdir(folder.path)
    if not adopted and not is_empty and not is_owned(folder):
        if adopt:
            proof = "no folder in it holds a journal or an archive that ctxpipe wrote"
            raise SettingsError(
                f"nothing in {folder.path} is known to be ctxpipe's: {proof}; nothing was changed"
            )
        raise SettingsError(
            f"{folder.path} carries no mark of ctxpipe, so nothing in it is deleted; if version 0.1 wrote it, add "
            "--adopt, and --dry-run to look first"
        )
    if adopt:
        if adopted and not dry_run:
            mark_adopted(folder, adopted)
        files = sum(len(mark.files or ()) for mark in adopted.values())
        told = "would be adopted" if dry_run else "adopted"
        print_line(f"folders {told}: {len(adopted):,}, files in them: {files:,}")
    return adopted


def _list_files(folder: StorageRoot, files: Sequence[OwnFile]) -> None:
    for file in files:
        path = os.path.join(folder.path, file.folder, file.name)
        print_line(path if path.isprintable() else ascii(path))
    print_line(
        f"files that would be deleted: {len(files):,}, bytes: {sum(file.size for file in files):,}"
    )


def _ask_to_delete(root: Path, files: Sequence[OwnFile]) -> None:
    if not sys.stdin.isatty():
        raise SettingsError(
            f"{len(files):,} files would be deleted, and nobody can be asked here: add --yes"
        )
    size = sum(file.size for file in files)
    if not typer.confirm(f"Delete {len(files):,} files ({size:,} bytes) below {root}?", err=True):
        complain("nothing was deleted")
        raise typer.Exit(FAILED)


def _limit(option: str, given: float | None, unit: int) -> float | None:
    if given is not None and not (math.isfinite(given) and given >= 0):
        raise SettingsError(f"{option} is {given}; give a number, 0 or more")
    return None if given is None else given * unit


# Telling ------------------------------------------------------------------------------------------


def _print_shares(title: str, shares: Sequence[tuple[str, int]]) -> None:
    total = sum(tokens for _, tokens in shares)
    rows = [
        (name, f"{tokens:,}", f"{tokens / total:.1%}" if total else "") for name, tokens in shares
    ]
    print_table(title, ("what", "tokens", "share"), rows)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what a user did wrong into one sentence and an exit code."""
    try:
        yield
    except SettingsError as error:
        complain(str(error))
        raise typer.Exit(MISUSED) from error
    except CtxpipeError as error:
        complain(str(error))
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt as interrupt:
        complain("interrupted")
        raise typer.Exit(INTERRUPTED) from interrupt


def _prices(model: str, read: float | None) -> Prices:
    if not model:
        return Prices.relative() if read is None else Prices.relative(read=read)
    try:
        listed = prices_of(model)
    except SettingsError as error:
        told = f"no prices are known for the model {model!r}; without --model costs are in input tokens"
        raise SettingsError(told) from error
    return listed if read is None else replace(listed, read=read * listed.input)


def main() -> None:
    """The command ``ctxpipe``."""
    accept_any_character()
    try:
        app(prog_name="ctxpipe")
    except OSError as error:  # what is read and written elsewhere has errors of its own
        drop_output()
        complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
        raise SystemExit(FAILED) from error
