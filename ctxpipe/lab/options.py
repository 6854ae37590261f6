"""Options that several commands of the laboratory share, and what the commands do with them."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..errors import SettingsError
from ..providers.cache_rules import ANTHROPIC, CACHE_RULES, CacheRules, cache_rules, rules_of_model
from ..providers.prices import Prices, find_prices
from ..settings import EXAMPLE_MODEL
from .batch import FileReplay, OrdersOf, Reporter, cluster, replay_files, workers
from .replay import LAPSES_EVERY, PipelineMaker, ReplaySettings
from .terminal import progress_bar

MAX_NAMED_FILES = 2
"""Number of files that a report names in its command; it only counts the others."""

Files = Annotated[
    list[str],
    typer.Argument(
        help="Transcripts (JSON, JSONL), or folders, in which all transcripts are read; "
        "- is standard input.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Model = Annotated[
    str,
    typer.Option(
        help=f"Model whose prices apply, such as {EXAMPLE_MODEL}; default: costs in input tokens."
    ),
]
ReadPrice = Annotated[
    float | None,
    typer.Option(
        "--read",
        help="The price of a cached token, relative to an input token; default: the price of "
        "the model, or 0.1 without --model.",
        max=1,
    ),
]
Provider = Annotated[
    str,
    typer.Option(
        help="Rules of the prompt cache: "
        f"{', '.join(CACHE_RULES)}; default: those of --model, or anthropic."
    ),
]
HitRate = Annotated[
    float | None,
    typer.Option(
        help="Share of the possible cache hits that happen, for caches without a guarantee "
        "such as gemini; default: 1.",
        min=0,
        max=1,
    ),
]
PrefixTokens = Annotated[
    int,
    typer.Option(
        "--prefix",
        help="Tokens of the system prompt and the tools, for recordings that show them neither "
        "by their content nor by their usage.",
        min=0,
    ),
]
Rest = Annotated[
    int,
    typer.Option(
        help="For recordings without times: a pause in which the cache expires before every Nth "
        f"call; 0: no pause. With a person in the loop about {LAPSES_EVERY}.",
        min=0,
    ),
]
CheckUsage = Annotated[
    bool,
    typer.Option(
        "--check-usage",
        help="Only compare the simulated cache with the usage in the recordings; no policies.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(help="Number of worker processes; default: one for each processor.", min=1),
]
Scheduler = Annotated[
    str,
    typer.Option(
        help="Address of the Dask scheduler whose workers replay the files: tcp://host:8786."
    ),
]


def cache_rules_of_options(provider: str, model: str) -> CacheRules:
    """Return the rules called *provider*; for "" those of *model*, or else Anthropic's."""
    rules = rules_of_model(model or None) or ANTHROPIC
    if provider:
        rules = cache_rules(provider)
    return replace(rules, min_tokens=rules.min_tokens_of(model))


def prices_of_options(
    model: str, read_price: float | None, rules: CacheRules = ANTHROPIC
) -> Prices:
    """Return the prices of *model*, or those of *rules* for "", with *read_price* if it is set.

    Raises SettingsError if no prices are listed for the model.
    """
    prices = find_prices(model) if model else Prices.relative(rules=rules)
    if prices is None:
        raise SettingsError(
            f"no prices are known for the model {model!r}; "
            f"give another name, such as {EXAMPLE_MODEL}, or none: costs are then in input tokens"
        )
    if read_price is None:
        return prices
    return replace(prices, read=read_price * prices.input)


def replay_recordings(
    paths: Sequence[str],
    makers: Mapping[str, PipelineMaker],
    settings: ReplaySettings,
    *,
    processes: int | None,
    scheduler: str,
    reporter: Reporter | None = None,
    orders_of: OrdersOf | None = None,
) -> list[FileReplay]:
    """Replay the files at *paths* with a progress bar; return the results in their order.

    They are replayed by the workers of the Dask *scheduler*, or by *processes* of this machine, by
    default one for each processor. The other arguments and the results are those of `replay_files`.
    """
    process_count = min(processes or os.cpu_count() or 1, len(paths))
    executor_context = cluster(scheduler) if scheduler else workers(process_count)
    with executor_context as executor, progress_bar() as progress:
        task = progress.add_task("replaying", total=len(paths))
        return replay_files(
            paths,
            makers,
            settings,
            executor=executor,
            reporter=reporter,
            orders_of=orders_of,
            progress=lambda _file: progress.advance(task),
        )


def origin_line(files: Sequence[str], prices: str) -> str:
    """Return a line with the version, the date, the *prices* and the command of a report."""
    others = files[MAX_NAMED_FILES:]  # a pattern of the shell may match hundreds
    arguments = [argument for argument in sys.argv[1:] if argument not in others]
    command = shlex.join(["ctxpipe", *arguments])
    if others:
        command += f", and {len(others)} more"
    return f"ctxpipe {__version__}, {time.strftime('%Y-%m-%d')}, {prices}: {command}"


def check_page(html: Path) -> None:
    """Check that the page can be written: replays may take minutes, so this is done before them.

    Raises SettingsError if it cannot be written.
    """
    is_new = not html.exists()
    write_page(html, "", mode="a")
    if is_new:  # an interruption must not leave an empty file
        html.resolve().unlink()


def write_page(html: Path, text: str, mode: str) -> None:
    """Write *text* to the file of the page; the *mode* is that of `open`.

    Raises SettingsError if the file cannot be written.
    """
    try:
        with html.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"--html: {html} cannot be written: {reason}") from error
