"""The commands ``ctxpipe replay`` and ``ctxpipe inspect``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Protocol, TypeVar

import anyio
import typer

from .._text import as_number, as_percent, as_ratio, count_phrase
from .._values import JsonDict
from ..errors import CtxpipeError, SettingsError
from ..providers.cache_rules import (
    CacheRules,
    assumptions_in,
)
from ..providers.prices import HOUR
from ..stages.reports import Outcome, Result
from ..tokens import TokenCounter
from .advice import advice_sentence, advise, code_to_paste, next_command
from .batch import FileReplay, Reporter, with_subagents
from .cache import (
    HEADINGS,
    MAX_SHARE_DIFFERENCE,
    CacheReport,
    Calibration,
    cache_report,
    rows,
    total_report,
)
from .contents import Contents, contents, total_contents
from .narration import narrate
from .options import (
    AsJson,
    CheckUsage,
    Files,
    HitRate,
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
from .orders import RulesShare, rules_share
from .page import page
from .policies import NONE, POLICIES, policies
from .prefix import PREFIX_TOKENS
from .proposals import propose_orders
from .recording_files import Recordings, recordings
from .replay import PipelineMaker, ReplaySettings
from .report import DOLLARS, FIGURES, Figures, figures
from .terminal import (
    SHOWN,
    print_error,
    print_figures,
    print_json,
    print_line,
    print_notice,
    print_table,
    print_warning,
    progress_bar,
)
from .transcripts import STDIN, Transcript, read_transcripts
from .workbench import Workbench

PRESET = "coding"


def replay(
    files: Files,
    compare: Annotated[
        str,
        typer.Option(
            help=f"Policies to compare, separated by commas: {', '.join(POLICIES)}, or a pipeline "
            f"of your own in a FILE.toml."
        ),
    ] = f"{NONE},{PRESET}",
    model: Model = "",
    read: ReadPrice = None,
    provider: Provider = "",
    hit_rate: HitRate = None,
    prefix: PrefixTokens = PREFIX_TOKENS,
    rest: Rest = 0,
    check_usage: CheckUsage = False,
    processes: Processes = None,
    scheduler: Scheduler = "",
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page for all files: the policies side by side, turn by turn, and "
            "the cost of each tool."
        ),
    ] = None,
    all_columns: Annotated[
        bool,
        typer.Option("--all-columns", help="Print all figures, with a column for each policy."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay conversations turn by turn: show their cost, and how much the agent still sees.

    The first policy of --compare is the baseline of the others.
    """
    caching = cache_rules_of_options(provider, model).with_hit_rate(hit_rate)
    prices = prices_of_options(model, read_price=read, rules=caching)
    # Each policy is read here, so that an invalid one is reported before the replays begin.
    names = [NONE] if check_usage else [name.strip() for name in compare.split(",")]
    makers = policies(names, prices)
    sources = recordings(files)
    reporter: Reporter | None = None
    if html:
        check_page(html)
        reporter = partial(narrate, prices=prices if model else None)
    file_replays = replay_recordings(
        sources.files,
        makers,
        ReplaySettings(prefix_tokens=prefix, rules=caching, rest_every=rest),
        processes=processes,
        scheduler=scheduler,
        reporter=reporter,
        orders_of=propose_orders,
    )
    replays = with_subagents(file_replays)
    by_file = {file.path: figures([file.replays], prices) for file in replays}
    totals = figures([file.replays for file in replays], prices)
    rules = {
        row.policy: rules_share(
            look
            for file in replays
            if row.policy in file.replays
            for look in file.replays[row.policy].looks
        )
        for row in totals
    }
    unit = DOLLARS if model else "input tokens"
    origin = origin_line(files, f"prices of {model}" if model else "costs in input tokens")
    successes = [file for file in replays if not file.error]
    failures = [file for file in replays if file.error]
    advice = _advice_as_json(successes, totals, rules)
    if as_json:
        print_json(
            {
                "made": origin,
                "unit": unit,
                "cache": {
                    "rules": caching.name,
                    "assumed": assumptions_in(caching),
                    "rest_every": rest,
                },
                "files": {
                    file.path: [asdict(row) for row in by_file[file.path]] for file in successes
                },
                "read": {file.path: file.as_json() for file in successes},
                "all": [asdict(row) for row in totals],
                "rules": {name: asdict(share) if share else None for name, share in rules.items()},
                "advice": advice,
                "errors": {file.path: file.error for file in failures},
                "skipped": sources.unreadable,
            }
        )
    elif check_usage:
        _print_scores(successes)
    else:
        _print_replays(successes, by_file, totals, unit, model, all_columns=all_columns)
        has_pauses = rest > 0 or any(file.has_times for file in successes)
        has_hour_marks = caching.long_lifetime_seconds == HOUR and prices.write_1h > prices.write
        if has_pauses and has_hour_marks:
            _print_hours(totals)
        if successes:
            print_line(_describe_rules(caching, rest))
            print_line(_describe_prefixes(successes))
            print_line(origin)
        if advice is not None:
            _print_advice(advice)
    for file in successes:
        if file.coverage.warning:
            print_warning(file.coverage.warning)
    for file in failures:
        print_error(file.error)
    reports = [file.report for file in successes if file.report]
    if html and reports:
        write_page(html, page(reports, totals, unit, origin, rules), mode="w")
        print_notice(f"page: {html}")
    if failures or (check_usage and not any(file.calibration for file in successes)):
        raise typer.Exit(1)


def _describe_rules(rules: CacheRules, rest: int) -> str:
    """Return the name of *rules*, those that no published page confirms, and the pauses."""
    text = f"cache: {rules.name}"
    assumptions = assumptions_in(rules)
    if assumptions:
        text += f", assumed are {', '.join(assumptions)}"
    pauses = f"expires before every call number {rest}" if rest else "never expires"
    return f"{text}; in a recording without times it {pauses}"


def _describe_prefixes(replays: Sequence[FileReplay]) -> str:
    """Return how many prefixes are known from where, and the size of the assumed ones."""
    origins: dict[str, list[float]] = {}
    for file in replays:
        if file.prefix is not None:
            origins.setdefault(file.prefix.origin, []).append(file.prefix.tokens)
    phrases = {
        "recording": "recorded in",
        "usage": "known from the usage in",
        "assumption": "assumed (--prefix) in",
    }
    parts = []
    for origin, tokens in origins.items():
        size = as_number(median(tokens))
        parts.append(f"{phrases[origin]} {count_phrase(len(tokens), 'file')}, median {size}")
    return f"prefix of system prompt and tools, in tokens: {'; '.join(parts)}"


def _print_scores(replays: Sequence[FileReplay]) -> None:
    """Print for each of *replays* with a usage how well the simulated cache agrees with it."""
    scores = [(display_name(file.path), file.calibration) for file in replays if file.calibration]
    if not scores:
        print_error("no recording reports the usage of a prompt cache: nothing can be compared")
        return
    if len(scores) > 1:
        total = sum((score for _, score in scores), Calibration())
        scores.append((f"all {len(scores)} conversations", total))
    headings = ("recording", "calls", "tokens", "read", "simulated", "alike")
    table = []
    for name, score in scores:
        row = (
            name,
            as_number(score.calls),
            as_ratio(score.token_ratio),
            as_percent(score.usage_hits),
            as_percent(score.simulation_hits),
            as_percent(score.alike / score.calls),
        )
        table.append(row)
    print_table("the simulated cache beside the reported usage", headings, table)
    for name, meaning in SCORES.items():
        print_line(f"{name:9}  {meaning}")


SCORES = {
    "tokens": "reported prompt tokens divided by simulated ones",
    "read": "share of the reported tokens that was read from the cache",
    "simulated": "the same in the simulation",
    "alike": f"calls for which both shares differ by less than {MAX_SHARE_DIFFERENCE:.0%}",
}
"""The explanation of each figure of ``--check-usage``."""


def _advice_as_json(
    replays: Sequence[FileReplay],
    totals: Sequence[Figures],
    rules: Mapping[str, RulesShare | None],
) -> JsonDict | None:
    """Return the advice about *totals* as a JSON object, or None if nothing was compared.

    *rules* are those of `advise`.
    """
    if len(totals) < 2 or not replays:
        return None
    advice = advise(totals, rules)
    formats = [file.format or "" for file in replays]
    paths = [file.path for file in replays]
    return {
        **advice._asdict(),
        "sentence": advice_sentence(advice, totals, rules),
        "code": code_to_paste(advice.policy, formats),
        "next": next_command(advice, formats, paths, [row.policy for row in totals]),
    }


def _print_advice(advice: JsonDict) -> None:
    """Print the sentence of *advice*, code to paste, and the next command."""
    print_line("")
    print_line(advice["sentence"])
    if advice["code"] and advice["code"] != advice["next"]:
        print_line("")
        for line in advice["code"].splitlines():
            print_line(line)
        print_line("")
    print_line(f"next: {advice['next']}")


def _print_replays(
    replays: Sequence[FileReplay],
    by_file: Mapping[str, Sequence[Figures]],
    totals: Sequence[Figures],
    unit: str,
    model: str,
    *,
    all_columns: bool,
) -> None:
    """Print a table for each of *replays*, one for all, and the meaning of the figures.

    *by_file* has the figures of each file by its path. *totals*, the figures of all files, are
    printed if there are several. Costs are in *unit*, at the prices of *model* if it is not "".
    With *all_columns* all figures are printed, otherwise those of `SHOWN`. A calibration follows
    its table. Without replays nothing is printed.
    """
    costs = f"cost in {unit}, {model}" if model else f"cost in {unit}"
    for file in replays:
        remarks = [costs]
        if file.repaired:
            remarks.append(f"{count_phrase(file.repaired, 'fault')} repaired")
        if file.coverage.recognized < 1:
            remarks.append(f"{as_percent(file.coverage.recognized)} of the records recognized")
        title = f"{display_name(file.path)} ({'; '.join(remarks)})"
        print_figures(title, by_file[file.path], unit, all_columns=all_columns)
        if file.calibration:
            print_line(str(file.calibration))
            print_line("")
    if len(replays) > 1:
        title = f"all {len(replays)} conversations ({costs})"
        print_figures(title, totals, unit, all_columns=all_columns)
        _print_intervals(totals)
        calibrations = [file.calibration for file in replays if file.calibration]
        if calibrations:
            print_line(str(sum(calibrations, Calibration())))
    if not replays:
        return
    for name, meaning in FIGURES.items():
        if name in SHOWN or all_columns:
            print_line(f"{name:7}  {meaning}")


def _print_intervals(totals: Sequence[Figures]) -> None:
    """Print the interval of the ratio of each policy but the first, the baseline."""
    for row in totals[1:]:
        if row.low is None or row.high is None:
            continue
        interval = f"{as_ratio(row.low)} to {as_ratio(row.high)}"
        print_line(f"{row.policy}: ratio {as_ratio(row.ratio)}, 90 % interval {interval}")


def _print_hours(totals: Sequence[Figures]) -> None:
    """Print the cost of cache marks for an hour, and advice whether to place them."""
    for row in totals:
        advice = "place them, cache_seconds=3600" if row.hour < 1 else "do not place them"
        ratio = as_ratio(row.hour)
        print_line(f"{row.policy}: marks for an hour would cost {ratio} times as much: {advice}")


def display_name(path: str) -> str:
    """Return the name of a file for a title."""
    return "standard input" if path == STDIN else Path(path).name


def inspect(
    files: Files,
    most: Annotated[int, typer.Option(help="Number of largest blocks to list.", min=0)] = 10,
    cache: Annotated[
        bool,
        typer.Option("--cache", help="Show why the prompt cache missed, by the usage in the file."),
    ] = False,
    plan: Annotated[
        str,
        typer.Option(
            help="Show what this policy, or the pipeline of a TOML file, would change at the end."
        ),
    ] = "",
    model: Model = "",
    as_json: AsJson = False,
) -> None:
    """Show the contents of the context: tokens by kind and by tool, and the largest blocks.

    Tokens are counted with tiktoken. With --cache: the tokens that were not read from the prompt
    cache, and why, by the usage in the file, at the prices of --model or of each reply's model.
    With --plan: the change that each stage would make at the end of the transcript.
    """
    if cache and plan:
        raise SettingsError("give --cache or --plan, not both")
    prices = prices_of_options(model, read_price=None) if model else None
    sources = recordings(files)
    basis = f"prices of {model or 'the model of each reply'}" if cache else "tokens of tiktoken"
    inspect_each = partial(_inspect_each, sources, origin_line(files, basis), as_json)
    if plan:
        [make] = policies([plan]).values()
        inspect_each(partial(_plan, make=make), _print_plan, _total_plan)
    elif cache:
        report = partial(cache_report, counter=TokenCounter(), prices=prices)
        inspect_each(report, _print_cache, partial(total_report, prices=prices))
    else:
        measure = partial(contents, counter=TokenCounter(), max_blocks=most)
        inspect_each(measure, _print_contents, partial(total_contents, max_blocks=most))


class _View(Protocol):
    """A view of a conversation that can be printed as JSON."""

    def as_json(self) -> JsonDict: ...


S = TypeVar("S", bound=_View)


def _inspect_each(
    sources: Recordings,
    origin: str,
    as_json: bool,
    view: Callable[[Transcript], S],
    show: Callable[[str, S], None],
    add: Callable[[Iterable[S]], S],
) -> None:
    """Print the *view* of each transcript and, if there are several, their sum by *add*.

    *show* prints a view under a title. *origin* is the last line of the report. Raises typer.Exit
    with the code 1 if a file cannot be read.
    """
    views: dict[str, S] = {}
    errors: dict[str, str] = {}
    warnings: list[str] = []
    recognized: dict[str, float] = {}
    with progress_bar() as progress:
        for path in progress.track(sources.files, description="reading"):
            try:
                transcript, *subagents = read_transcripts(path)
                views[path] = view(transcript)
                views |= {each.name: view(each) for each in subagents}
                recognized[path] = transcript.coverage.recognized
                if transcript.coverage.warning:
                    warnings.append(transcript.coverage.warning)
            except CtxpipeError as error:
                errors[path] = str(error)
    if as_json:
        print_json(
            {
                "made": origin,
                "files": {path: file_view.as_json() for path, file_view in views.items()},
                "recognized": recognized,
                "all": add(views.values()).as_json(),
                "errors": errors,
                "skipped": sources.unreadable,
            }
        )
    else:
        for path, file_view in views.items():
            show(display_name(path), file_view)
        if len(views) > 1:
            show(f"all {len(views):,} conversations", add(views.values()))
        if views:
            print_line(origin)
    for text in warnings:
        print_warning(text)
    for text in errors.values():
        print_error(text)
    if errors:
        raise typer.Exit(1)


def _print_contents(name: str, view: Contents) -> None:
    """Print the tokens by kind and by tool, and the largest blocks, of one *view*."""
    total = view.kinds.total() or 1
    kinds = view.kinds.most_common()
    shares = [(kind, as_number(n), as_percent(n / total)) for kind, n in kinds]
    print_table(f"{name}: {view}", ("what", "tokens", "share"), shares)
    if view.tools:
        tools = [(tool, as_number(calls), as_number(n)) for tool, calls, n in view.by_tool]
        print_table("by tool", ("tool", "calls", "tokens"), tools)
    blocks = [
        (
            display_name(block.file),
            str(block.message),
            block.what,
            as_number(block.tokens),
            block.begins,
        )
        for block in view.largest
    ]
    headings = ("file", "message", "what", "tokens", "begins")
    # The column "file" is for several conversations, which have no format in common.
    first_column = 1 if view.format else 0
    block_rows = [block[first_column:] for block in blocks]
    print_table("largest blocks", headings[first_column:], block_rows)


def _print_cache(name: str, report: CacheReport) -> None:
    """Print the cache misses of *report* by cause."""
    if report.tallies:
        print_table(f"{name}: {report}", HEADINGS, rows(report.tallies))
    else:
        print_line(f"{name}: {report}; the cache had no avoidable misses.")
    if report.shortened:
        times = count_phrase(report.shortened, "time")
        print_line(f"{times} the client sent far less than the recorded history: not analyzed.")


@dataclass(frozen=True, slots=True)
class _Plan:
    """A dry run of a pipeline: the plan of each stage, and the tokens *saved* by all.

    A plan has the name of the stage, the outcome, and the change or the reason.
    """

    stages: list[dict[str, str]]
    saved: int

    def as_json(self) -> JsonDict:
        return asdict(self)


def _plan(transcript: Transcript, make: PipelineMaker) -> _Plan:
    """Return the plan of the pipeline that *make* returns, at the end of *transcript*."""
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
    """Return the sum of *plans*: the saved tokens, without stages."""
    return _Plan([], sum(plan.saved for plan in plans))


def _print_plan(name: str, plan: _Plan) -> None:
    """Print what each stage of *plan* would change."""
    title = f"{name}: {as_number(plan.saved)} tokens would leave"
    if plan.stages:
        plans = [tuple(stage.values()) for stage in plan.stages]
        print_table(title, ("stage", "outcome", "what, why"), plans)
    else:
        print_line(title)
