"""The laboratory's commands: see what a context costs and forgets, on recorded conversations of your own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
except ImportError as missing:  # pragma: no cover  the extra is there when tests run
    raise SystemExit(f"the command needs {missing.name}: pip install 'ctxpipe[cli]'") from missing

from .errors import CtxpipeError, SettingsError
from .lab import tables
from .lab.batch import FileReplay, replay_files
from .lab.config import read_config
from .lab.policies import POLICIES, policies
from .lab.replay import PipelineMaker, Settings
from .lab.transcripts import Transcript, read_transcript
from .lab.workbench import Workbench
from .prices import Prices, prices_of
from .reports import Outcome
from .storage import LocalStorage
from .tokens import TokenCounter

__all__ = ["app", "main"]

app = typer.Typer(
    help="See what an agent's context costs and what it forgets, on recorded conversations of your own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FAILED, MISUSED = 1, 2

Files = Annotated[list[str], typer.Argument(help="Transcripts (JSON, JSONL); - is standard input.", show_default=False)]
File = Annotated[str, typer.Argument(help="A transcript (JSON or JSONL); - is standard input.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Preset = Annotated[str, typer.Option(help=f"What to try: {', '.join(POLICIES)}.")]
Config = Annotated[Path | None, typer.Option(help="A pipeline of your own, in TOML, instead of a preset.")]
Model = Annotated[str, typer.Option(help="Whose prices to take, such as claude-opus-4-5; default: in input tokens.")]
ReadPrice = Annotated[float, typer.Option("--read", help="The price of a cached token, in that of an input token.")]


@app.command()
def replay(
    files: Files,
    compare: Annotated[str, typer.Option(help="Policies to compare, separated by commas.")] = "",
    preset: Preset = "coding",
    config: Config = None,
    model: Model = "",
    read: ReadPrice = 0.1,
    refetch: Annotated[bool, typer.Option(help="Price what the agent has to read again.")] = True,
    processes: Annotated[int | None, typer.Option(help="How many; default: one for each processor.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay conversations through a pipeline, turn by turn as in life: what they cost, what the agent still sees.

    The first policy (none, unless --compare begins otherwise) is what the others are measured by.
    """
    with _told():
        prices = _prices(model, read)
        names = [name.strip() for name in compare.split(",") if name.strip()] or ["none", preset]
        makers: dict[str, PipelineMaker] = {**policies(dict.fromkeys(names), prices)}
        if config is not None:
            makers = {**policies([names[0]], prices), config.stem: read_config(config, prices)}
        done = _replayed(files, makers, Settings(refetch=refetch), processes)
        _print_replays(done, prices, next(iter(makers)), as_json=as_json)
    raise typer.Exit(FAILED if any(file.error for file in done) else 0)


def _replayed(
    files: Sequence[str], makers: Mapping[str, PipelineMaker], settings: Settings, processes: int | None
) -> list[FileReplay]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replaying", total=len(files))
        return replay_files(files, makers, settings, processes=processes, progress=lambda _file: progress.advance(task))


def _print_replays(done: Sequence[FileReplay], prices: Prices, baseline: str, *, as_json: bool) -> None:
    rows = {file.path: tables.figures(file.replays, prices, baseline) for file in done if file.replays}
    everything = tables.summed(done, prices, baseline)
    errors = {file.path: file.error for file in done if file.error}
    if as_json:
        told = {path: [row.as_json() for row in found] for path, found in rows.items()}
        _print_json({"files": told, "all": [row.as_json() for row in everything], "errors": errors})
    else:
        for path, found in rows.items():
            _print_figures(Path(path).name, found)
        if len(rows) > 1:
            _print_figures(f"all {len(rows)} conversations", everything)
    for path, error in errors.items():
        _complain(error if path in error else f"{path}: {error}")


def _print_figures(title: str, rows: Sequence[tables.Figures]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("policy")
    for name in ("calls", "cost", "relative", "cache hits", "largest prompt", "refetches", "seen", "seen or findable"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.policy,
            f"{row.calls:,}",
            f"{row.cost:,.2f}" if row.cost < 1000 else f"{row.cost:,.0f}",
            f"{row.relative:.3f}",
            f"{row.hit_rate:.1%}",
            f"{row.largest:,.0f}",
            f"{row.refetches:,}",
            f"{row.visible:.3f}",
            f"{row.reachable:.3f}",
        )
    Console().print(table)


@app.command()
def inspect(
    file: File,
    most: Annotated[int, typer.Option(help="How many of the largest blocks to list.", min=0)] = 10,
    as_json: AsJson = False,
) -> None:
    """What fills the context: by kind, by tool, and the largest blocks. Tokens are tiktoken's, exact."""
    with _told():
        transcript = read_transcript(file)
        counter = TokenCounter()
        kinds = tables.tokens_by_kind(transcript.messages, counter)
        tools = tables.tokens_by_tool(transcript.messages, counter)
        largest = tables.largest_blocks(transcript.messages, counter, most)
    if as_json:
        blocks = [{**asdict(block), "begins": _line(block.begins)} for block in largest]
        _print_json({"name": transcript.name, "kinds": kinds, "tools": tools, "largest": blocks})
        return
    total = sum(kinds.values())
    _print_shares(_heading(transcript, total), kinds.most_common())
    _print_table("by tool", ("tool", "calls", "tokens"), [(name, f"{n:,}", f"{t:,}") for name, n, t in tools])
    shown = [(f"{b.message}", b.what, f"{b.tokens:,}", _line(b.begins)) for b in largest]
    _print_table("largest blocks", ("message", "what", "tokens", "begins"), shown)


def _heading(transcript: Transcript, total: int) -> str:
    mended = f", {len(transcript.repaired)} faults mended" if transcript.repaired else ""
    messages = f"{len(transcript.messages)} messages, {transcript.calls} calls"
    return f"{Path(transcript.name).name}: {transcript.format}, {messages}, {total:,} tokens{mended}"


@app.command()
def plan(file: File, preset: Preset = "coding", config: Config = None, as_json: AsJson = False) -> None:
    """What a pipeline would change in the context as it stands at the end, without doing it."""
    import anyio

    with _told():
        prices = Prices.relative()
        transcript = read_transcript(file)
        maker = read_config(config, prices) if config else policies([preset], prices)[preset]
        pipeline = maker(Workbench())

        async def planned() -> Any:
            return await pipeline.plan(
                transcript.messages, session_id="plan", system=transcript.system, tools=transcript.tools
            )

        result = anyio.run(planned)
        saved = pipeline.counter.total(transcript.messages) - pipeline.counter.total(result.messages)
    rows = [
        (
            report.stage,
            "would act" if report.outcome is Outcome.PLANNED else report.outcome.value,
            report.reason or _line(str(report.detail or "")),
        )
        for report in result.reports
    ]
    if as_json:
        stages = [{"stage": stage, "outcome": outcome, "why": why} for stage, outcome, why in rows]
        _print_json({"stages": stages, "saved": saved})
        return
    title = f"{Path(transcript.name).name}: {saved:,} tokens would leave"
    _print_table(title, ("stage", "outcome", "what, why"), rows)


@app.command()
def clean(
    root: Annotated[Path, typer.Argument(help="The folder of a LocalStorage, such as .ctxpipe.", show_default=False)],
    max_mb: Annotated[float | None, typer.Option(help="Keep at most so many megabytes.")] = None,
    max_days: Annotated[float | None, typer.Option(help="Keep nothing older than so many days.")] = None,
    live: Annotated[list[str] | None, typer.Option(help="A transcript whose placeholders keep their files.")] = None,
    records: Annotated[bool, typer.Option(help="Delete archives and journals too.")] = False,
) -> None:
    """Delete the oldest offloaded files, but none that a live conversation names."""
    import anyio

    with _told():
        if not root.is_dir():
            raise SettingsError(f"{root} is no folder")
        if max_mb is None and max_days is None:
            raise SettingsError("nothing to do: give --max-mb or --max-days")
        histories = [read_transcript(path).messages for path in live or ()]
        cleaned = anyio.run(
            lambda: LocalStorage(root).cleanup(
                max_bytes=None if max_mb is None else round(max_mb * 1_000_000),
                max_age=None if max_days is None else max_days * 86_400,
                live=histories,
                records=records,
            )
        )
    Console().print(f"{len(cleaned.files):,} files deleted, {cleaned.bytes:,} bytes freed", highlight=False)


# Printing -------------------------------------------------------------------------------------------------------


def _print_shares(title: str, shares: Sequence[tuple[str, int]]) -> None:
    total = sum(tokens for _, tokens in shares)
    rows = [(name, f"{tokens:,}", f"{tokens / total:.1%}" if total else "") for name, tokens in shares]
    _print_table(title, ("what", "tokens", "share"), rows)


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in ("tokens", "share", "calls", "message") else "left")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    Console().print(table)


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)  # brackets in a transcript are no markup


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")


def _line(text: str, most: int = 80) -> str:
    joined = " ".join(text[: 4 * most].split())
    return joined if len(joined) <= most else joined[: most - 1] + "…"


def _complain(text: str) -> None:
    Console(stderr=True).print(_plain(f"ctxpipe: {text}"))


@contextmanager
def _told() -> Iterator[None]:
    """Turn what a user did wrong into one sentence and an exit code."""
    try:
        yield
    except SettingsError as error:
        _complain(str(error))
        raise typer.Exit(MISUSED) from error
    except CtxpipeError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from error


def _prices(model: str, read: float) -> Prices:
    return prices_of(model) if model else Prices.relative(read=read)


def main() -> None:
    """The command ``ctxpipe``."""
    app()
