"""The command ``ctxpipe survive``: which texts stay in the context under each policy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .._text import as_number, as_percent, as_ratio, count_phrase
from .._values import JsonDict
from ..errors import CtxpipeError, SettingsError, TranscriptError
from .batch import FileReplay
from .options import (
    AsJson,
    Files,
    Model,
    PrefixTokens,
    Processes,
    Provider,
    ReadPrice,
    Rest,
    Scheduler,
    cache_rules_of_options,
    check_page,
    origin_line,
    prices_of_options,
    replay_recordings,
    write_page,
)
from .orders import (
    SETTLED_CALLS,
    Look,
    Order,
    RulesShare,
    Survival,
    orders_by_transcript,
    read_orders,
    rules_share,
    survival_by_kind,
    transcript_key,
)
from .policies import POLICIES, policies
from .prefix import PREFIX_TOKENS
from .proposals import propose_orders
from .recording_files import recordings
from .replay import ReplaySettings
from .report import DOLLARS, Figures, cost, figures
from .survival_page import Missing, survival_page
from .terminal import (
    print_error,
    print_json,
    print_line,
    print_notice,
    print_table,
    print_warning,
    progress_bar,
)
from .transcripts import Transcript, read_transcript

MAX_NAMES = 5
"""Number of recordings or kinds that a message names; it only counts the others."""

PLACES = ("in the context", "only in a file that the context leads to", "lost")
"""The places of a text, in the order of the shares that `shares_of` returns."""

NO_LOOK = "–"
"""Cell of a share for which there was no look."""

LATER = f"{SETTLED_CALLS} calls or more later"
"""End of the name of a row with only those events whose text came enough calls before."""


def survive(
    files: Files,
    compare: Annotated[
        str,
        typer.Option(
            help=f"Policies to compare, separated by commas: {', '.join(POLICIES)}, or a pipeline "
            "of your own in a FILE.toml; default: all of these."
        ),
    ] = ",".join(POLICIES),
    orders: Annotated[
        str,
        typer.Option(
            help="JSONL file with the texts to look for; default: those that a simple reader "
            "proposes. The docs describe its form; --write-orders writes one."
        ),
    ] = "",
    write_orders: Annotated[
        Path | None,
        typer.Option(
            help="Write the texts that the reader proposes to this file, to be checked and edited, "
            "and replay nothing."
        ),
    ] = None,
    model: Model = "",
    read: ReadPrice = None,
    provider: Provider = "",
    prefix: PrefixTokens = PREFIX_TOKENS,
    rest: Rest = 0,
    processes: Processes = None,
    scheduler: Scheduler = "",
    html: Annotated[
        Path | None,
        typer.Option("--page", "--html", help="Write an HTML page with the tables."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which skills, plans, rules and other texts stay in the context, under each policy.

    The texts are looked for at each tenth call and after each compaction: in the context, in a file
    that the context leads to, or lost.
    """
    if write_orders is not None and orders:
        raise SettingsError("give --orders or --write-orders, not both")
    # Each of these is checked before the replays, which may take minutes.
    caching = cache_rules_of_options(provider, model)
    prices = prices_of_options(model, read_price=read, rules=caching)
    makers = policies([name.strip() for name in compare.split(",")], prices)
    known_orders = orders_by_transcript(read_orders(orders)) if orders else None
    sources = recordings(files)
    # The file of orders may match the pattern of the recordings, such as *.jsonl.
    sources.files = [path for path in sources.files if not _is_same_file(path, orders)]
    if write_orders is not None:
        paths = [path for path in sources.files if not _is_same_file(path, str(write_orders))]
        _write_proposals(paths, write_orders)
        return
    if known_orders is not None:
        _check_names(known_orders, sources.files, orders)
    if html is not None:
        check_page(html)
    orders_of = propose_orders if known_orders is None else partial(_orders_of, known_orders)
    replays = replay_recordings(
        sources.files,
        makers,
        ReplaySettings(prefix_tokens=prefix, rules=caching, rest_every=rest),
        processes=processes,
        scheduler=scheduler,
        orders_of=orders_of,
    )
    successes = [file for file in replays if not file.error]
    failures = [file for file in replays if file.error]
    rows = figures([file.replays for file in successes], prices) if successes else []
    surveys = [survey_of(row, successes) for row in rows]
    unit = DOLLARS if model else "input tokens"
    source = f"texts of {orders}" if orders else "texts proposed by the reader"
    origin = origin_line(files, source)
    if as_json:
        print_json(
            {
                "made": origin,
                "unit": unit,
                "policies": {survey.name: survey.as_json() for survey in surveys},
                "files": {file.path: _file_as_json(file) for file in successes},
                "errors": {file.path: file.error for file in failures},
                "skipped": sources.unreadable,
            }
        )
    elif surveys:
        _print_surveys(surveys, unit)
        print_line(origin)
    _print_late_orders(known_orders or {}, successes)
    if surveys and not surveys[0].at_calls:
        print_notice(
            "none of the texts was looked for: a text is looked for at each tenth call, "
            f"from {SETTLED_CALLS} calls after it came"
        )
    _print_faults(successes, failures)
    if html is not None and surveys:
        missing = missing_texts(successes)
        write_page(html, survival_page(tables(surveys, unit), missing, origin), mode="w")
        print_notice(f"page: {html}")
    if failures:
        raise typer.Exit(1)


def _is_same_file(path: str, other: str) -> bool:
    """Return True if *path* and *other* are the same existing file."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _orders_of(
    known_orders: Mapping[str, Sequence[Order]], transcript: Transcript
) -> Sequence[Order]:
    """Return the orders for *transcript* among *known_orders*."""
    return known_orders.get(transcript_key(transcript.name), ())


def _write_proposals(paths: Sequence[str], target: Path) -> None:
    """Write the proposals for the recordings at *paths* to the file *target*.

    Raises SettingsError if it cannot be written, typer.Exit with the code 1 if a recording cannot
    be read.
    """
    lines = []
    errors = []
    with progress_bar() as progress:
        for path in progress.track(paths, description="reading"):
            try:
                proposals = propose_orders(read_transcript(path))
            except CtxpipeError as error:
                errors.append(str(error))
                continue
            for order in proposals:
                text = json.dumps(order.as_json(), ensure_ascii=False)
                lines.append(f"{text}\n")
    if not lines and not errors:
        print_notice("no text was recognized, so nothing is written; write the file by hand")
        return
    try:
        with target.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.writelines(lines)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"--write-orders: {target} cannot be written: {reason}") from error
    print_notice(f"{count_phrase(len(lines), 'text')} proposed in {target}")
    for text in errors:
        print_error(text)
    if errors:
        raise typer.Exit(1)


def _check_names(
    known_orders: Mapping[str, Sequence[Order]], paths: Sequence[str], file: str
) -> None:
    """Report recordings without orders, and orders whose recording is not given.

    Raises TranscriptError if none of the recordings at *paths* has orders in *file*.
    """
    names = {transcript_key(path) for path in paths}
    if not names & known_orders.keys():
        raise TranscriptError(
            f"{file} has no orders for the given recordings; it has orders for "
            f"{_list(known_orders)}, and was given {_list(names)}"
        )
    without_orders = names - known_orders.keys()
    if without_orders:
        print_notice(f"no orders, so nothing to look for: {_list(without_orders)}")
    other_orders = known_orders.keys() - names
    if other_orders:
        print_notice(f"orders for recordings that are not given: {_list(other_orders)}")


def _list(names: Iterable[str]) -> str:
    """Return the first of *names*, sorted, and the number of the others."""
    sorted_names = sorted(names)
    text = ", ".join(sorted_names[:MAX_NAMES])
    others = len(sorted_names) - MAX_NAMES
    return f"{text} and {others:,} more" if others > 0 else text


def _print_faults(successes: Sequence[FileReplay], failures: Sequence[FileReplay]) -> None:
    """Print a warning for each file that was read in part, and the errors of the others."""
    for file in successes:
        if file.coverage.warning:
            print_warning(file.coverage.warning)
    for file in failures:
        print_error(file.error)


def _print_late_orders(
    known_orders: Mapping[str, Sequence[Order]], replays: Sequence[FileReplay]
) -> None:
    """Report orders that name calls after the end of their recording."""
    for file in replays:
        orders = known_orders.get(transcript_key(file.path), ())
        late = [order for order in orders if order.until_call >= file.calls]
        events = [order for order in late if order.is_event]
        if events:
            print_notice(
                f"{file.path} has {count_phrase(file.calls, 'call')}: "
                f"{count_phrase(len(events), 'order')} with a later at_call cannot be looked for"
            )


# Figures ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicySurvey:
    """The survival under one policy in all recordings, its *figures*, and the share of *rules*.

    *at_calls* has the sums of the looks at each tenth call, and at the call of an event, by the
    name of the row. *after_compactions* has those after compactions. *compactions* is the number
    of compactions while a text applied.
    """

    figures: Figures
    rules: RulesShare | None = None
    compactions: int = 0
    at_calls: Mapping[str, Survival] = field(default_factory=dict)
    after_compactions: Mapping[str, Survival] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the policy."""
        return self.figures.policy

    def as_json(self) -> JsonDict:
        """Return the survey as an object for JSON."""
        return {
            **{key: value for key, value in asdict(self.figures).items() if key != "policy"},
            "rules": asdict(self.rules) if self.rules else None,
            "compactions": self.compactions,
            "at_calls": {name: _survival_as_json(sums) for name, sums in self.at_calls.items()},
            "after_compactions": {
                name: _survival_as_json(sums) for name, sums in self.after_compactions.items()
            },
        }


def survey_of(row: Figures, replays: Sequence[FileReplay]) -> PolicySurvey:
    """Return the survey of the policy whose figures are *row*, over *replays*."""
    looks: list[Look] = []
    compactions = 0
    for file in replays:
        file_looks = file.replays[row.policy].looks
        looks += file_looks
        compactions += len({look.call for look in file_looks if look.after_compaction})
    at_calls = [look for look in looks if not look.after_compaction]
    after_compactions = [look for look in looks if look.after_compaction]
    return PolicySurvey(
        row,
        rules_share(looks),
        compactions,
        rows_of(at_calls),
        survival_by_kind(after_compactions),
    )


def rows_of(looks: Sequence[Look]) -> dict[str, Survival]:
    """Return the sums of *looks* by kind; a kind of events has a second row for `LATER` ones."""
    later = [
        look for look in looks if look.order.is_event and look.order.calls_since >= SETTLED_CALLS
    ]
    later_sums = survival_by_kind(later)
    rows = {}
    for kind, sums in survival_by_kind(looks).items():
        rows[kind] = sums
        if kind in later_sums:
            rows[f"{kind}, {LATER}"] = later_sums[kind]
    return rows


def shares_of(survival: Survival) -> tuple[float | None, float | None, float | None]:
    """Return the shares of *survival* in the context, only in a file, and lost."""
    return survival.context_share, survival.file_share, survival.loss_share


def _survival_as_json(survival: Survival) -> JsonDict:
    """Return *survival* as an object for JSON."""
    in_context, in_file, loss = shares_of(survival)
    return {"looks": survival.looks, "in_context": in_context, "in_file": in_file, "lost": loss}


def _file_as_json(file: FileReplay) -> JsonDict:
    """Return the orders of *file* and all looks for them, by policy; a look names its order."""
    orders = list(dict.fromkeys(look.order for run in file.replays.values() for look in run.looks))
    numbers = {order: number for number, order in enumerate(orders)}
    looks: dict[str, list[JsonDict]] = {}
    for name, run in file.replays.items():
        looks[name] = [
            {
                "order": numbers[look.order],
                "call": look.call,
                "after_compaction": look.after_compaction,
                "in_context": look.in_context,
                "in_file": look.in_file,
                "lost": max(0.0, 1 - look.in_context - look.in_file),
            }
            for look in run.looks
        ]
    return {"orders": [order.as_json() for order in orders], "looks": looks}


def missing_texts(replays: Sequence[FileReplay]) -> list[Missing]:
    """Return each text that a policy did not show whole at one of its calls."""
    result = []
    for file in replays:
        for name, run in file.replays.items():
            by_order: dict[Order, list[Look]] = {}
            for look in run.looks:
                if look.in_context < 1:
                    by_order.setdefault(look.order, []).append(look)
            for order, looks in by_order.items():
                calls = sorted({look.call for look in looks})
                lost_count = sum(look.in_context + look.in_file < 1 for look in looks)
                result.append(Missing(name, order, calls, lost_count))
    return result


# Tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SurvivalTable:
    """A table: its *title*, its *headings* and its *rows*."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(surveys: Sequence[PolicySurvey], unit: str) -> list[SurvivalTable]:
    """Return the tables of *surveys*: costs, shares at the calls, and those after compactions."""
    names = [survey.name for survey in surveys]
    costs = [
        (
            survey.name,
            cost(survey.figures.cost, unit),
            as_ratio(survey.figures.ratio),
            as_percent(survey.figures.seen),
            as_percent(survey.rules.share) if survey.rules else NO_LOOK,
            as_number(survey.compactions),
        )
        for survey in surveys
    ]
    result = [
        SurvivalTable(
            f"what it costs (cost in {unit})",
            ("policy", "cost", "ratio", "seen", "rules", "compactions"),
            costs,
        )
    ]
    for index, place in enumerate(PLACES):
        at_calls = [survey.at_calls for survey in surveys]
        rows = _sharerows_of(at_calls, index)
        if rows:
            result.append(SurvivalTable(f"{place}, at the calls", ("text", "n", *names), rows))
    for index, place in enumerate(PLACES):
        after_compactions = [survey.after_compactions for survey in surveys]
        rows = _sharerows_of(after_compactions, index, has_counts=index == 0)
        if rows:
            title = f"{place}, after each compaction"
            if index == 0:
                title += " (number of looks)"
            result.append(SurvivalTable(title, ("text", *names), rows))
    return result


def _sharerows_of(
    columns: Sequence[Mapping[str, Survival]], index: int, *, has_counts: bool | None = None
) -> list[tuple[str, ...]]:
    """Return a row for each text of *columns* with the share *index* in each column.

    The number of looks is the second cell, if the same texts were looked for in each column. With
    *has_counts* True it is in each cell, with False it is left out. For other places than the
    context, a row without any share is left out.
    """
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = []
    for name in names:
        cells = []
        looks = 0
        is_empty = True
        for column in columns:
            survival = column.get(name, Survival())
            share = shares_of(survival)[index]
            looks = max(looks, survival.looks)
            is_empty = is_empty and not share
            cell = NO_LOOK if share is None else as_ratio(share)
            if has_counts and share is not None:
                cell += f" ({survival.looks:,})"
            cells.append(cell)
        count_cell = [as_number(looks)] if has_counts is None else []
        if index == 0 or not is_empty:
            rows.append((name, *count_cell, *cells))
    return rows


def _print_surveys(surveys: Sequence[PolicySurvey], unit: str) -> None:
    """Print the tables of *surveys*, and what their columns mean."""
    for table in tables(surveys, unit):
        print_table(table.title, table.headings, table.rows)
    print_line("n      the number of looks: at each tenth call, or at the call that needs the text")
    print_line("seen   the share of what the replies used that the context showed")
    print_line("rules  the mean of the rows in the context, without instruction files and findings")
