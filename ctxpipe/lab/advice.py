"""Advice about a comparison of policies: which to use, the next command, and code to paste."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .._text import as_number, as_percent, as_ratio
from .orders import RulesShare
from .policies import BUDGET, POLICIES, WINDOW
from .report import Figures

MIN_SEEN_SHARE = 0.9
"""Share that must stay in the context; below it an agent misses what it has read."""

MIN_FOUND_SHARE = 0.95
"""Share that must stay in the context or be readable again, if less stays in the context."""

MIN_RULES_SHARE = 0.9
"""Share of the texts that govern the agent that must stay in the context."""

MIN_SAVED_SHARE = 0.02
"""Share of the baseline's cost that a policy must save to be worth a change."""


class Advice(NamedTuple):
    """The *policy* to use, the *verb* for it ("Use", "Try", "Keep" …), and the *reason*."""

    verb: str
    policy: str
    reason: str


def advise(rows: Sequence[Figures], rules: Mapping[str, RulesShare | None] | None = None) -> Advice:
    """Choose one of the policies of *rows*; the first is the baseline.

    *rules* is the share in the context of the texts that govern the agent, by policy. A policy is a
    candidate if its prompts fit in the window and it saves enough. The choice is the cheapest
    candidate that keeps enough in the context, of what the replies used and of these texts, else
    the cheapest that keeps enough readable, else the baseline. If no policy fits in the window, it
    is the one with the smallest prompts.
    """
    rules = rules or {}
    baseline = rows[0]
    fitting = [row for row in rows if row.peak <= WINDOW]
    if not fitting:
        smallest = min(rows, key=lambda row: row.peak)
        reason = f"No policy keeps every prompt below {as_number(WINDOW)} tokens."
        return Advice("Shorten further than", smallest.policy, f"{reason} This comes closest.")
    max_ratio = 1 - MIN_SAVED_SHARE if baseline in fitting else math.inf
    candidates = [row for row in fitting if row.ratio <= max_ratio]
    in_sight = [
        row
        for row in candidates
        if row.seen >= MIN_SEEN_SHARE and _keeps_rules(rules.get(row.policy))
    ]
    in_reach = [row for row in candidates if row.found >= MIN_FOUND_SHARE]
    best = min(in_sight or in_reach, key=lambda row: row.cost, default=None)
    if best is None:
        saving = as_percent(MIN_SAVED_SHARE)
        reason = f"No policy that saves {saving} keeps enough in sight or within reach."
        return Advice("Keep", baseline.policy, reason)
    on_rules = _rules_sentence(rules.get(best.policy))
    costs = f"It costs {as_ratio(best.ratio)} times as much as {baseline.policy}"
    if in_sight:
        reason = (
            f"{costs}, the least of those that left {as_percent(MIN_SEEN_SHARE)} or more of what "
            f"the replies used in sight: {as_percent(best.seen)}.{on_rules}"
        )
        return Advice("Use", best.policy, reason)
    reason = (
        f"{costs}, the least of those that kept {as_percent(MIN_FOUND_SHARE)} or more within "
        f"reach: {as_percent(best.found)}. But it left {as_percent(best.seen)} in sight: look at "
        f"your agent's answers, or keep more in sight.{on_rules}"
    )
    return Advice("Try", best.policy, reason)


def _keeps_rules(rules: RulesShare | None) -> bool:
    """Return True if enough of the texts that govern the agent stays, or none was looked for."""
    return rules is None or rules.share >= MIN_RULES_SHARE


def _rules_sentence(rules: RulesShare | None) -> str:
    """Return a sentence on the texts that govern the agent, "" if none was looked for."""
    if rules is None:
        return ""
    sentence = (
        f" Of skills, plans, rules, open errors and jobs {as_percent(rules.share)} stayed in the "
        "context"
    )
    if rules.weakest_share < rules.share:
        sentence += f"; least of all {rules.weakest}: {as_percent(rules.weakest_share)}"
    return f"{sentence}. See ctxpipe survive."


def advice_sentence(
    advice: Advice,
    rows: Sequence[Figures],
    rules: Mapping[str, RulesShare | None] | None = None,
) -> str:
    """Return *advice* about *rows* as one sentence, with the cost and the largest prompts.

    *rules* are those of `advise`.
    """
    row = next(row for row in rows if row.policy == advice.policy)
    baseline = rows[0]
    if row.peak > WINDOW:
        limit = as_number(WINDOW)
        closest = f"no policy keeps every prompt below {limit} tokens, and this comes closest"
        return f"{advice.verb} {advice.policy}: {closest}, with {as_number(row.peak)}."
    if row is baseline:
        return f"{advice.verb} {advice.policy}: {_beginning_small(advice.reason)}"
    change = f"costs {as_percent(row.ratio)} of {baseline.policy}"
    visible = f"leaves {as_percent(row.seen)} of what the replies used in sight"
    share = (rules or {}).get(row.policy)
    if share is not None:
        visible += f" ({as_percent(share.share)} of skills, plans, rules, open errors and jobs)"
    peak = f"has prompts of at most {as_number(row.peak)} tokens"
    if baseline.peak > WINDOW:
        peak += (
            f" ({baseline.policy}: {as_number(baseline.peak)}, which a window of "
            f"{as_number(WINDOW)} refuses)"
        )
    return f"{advice.verb} {advice.policy}: it {change}, {visible} and {peak}."


def _beginning_small(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


# What to do next ----------------------------------------------------------------------------------

AGENT_COMMANDS: Mapping[str, str] = {
    "Claude Code session": "claude",
    "codex rollout": "codex",
    "opencode export": "opencode",
    "gemini-cli session": "gemini",
    "Copilot CLI session": "copilot",
    "pi session": "pi",
    "mini-swe-agent trajectory": "mini",
}
"""The command of the agent that writes a format; the gateway works for each of them."""

MAX_NAMED_FILES = 2
"""Number of files that a command names; more are represented by an ellipsis."""

GATEWAY_PRESETS = ("coding", "lean", "chat")
OBSERVATION = "<returncode>"
"""The text that begins the results of mini-swe-agent, if its model calls no tools."""


def agent_command(policy: str, formats: Sequence[str]) -> str:
    """Return the command that runs the agent of *formats* with *policy*.

    Returns "" if the recordings are not all of one agent, or the gateway does not have the policy.
    """
    agents = {AGENT_COMMANDS.get(form, "") for form in formats}
    if len(agents) != 1 or policy not in GATEWAY_PRESETS:
        return ""
    [agent] = agents
    if not agent:
        return ""
    options = [] if policy == "coding" else ["--preset", policy]
    if agent == "mini":
        options += ["--observation", OBSERVATION]
    return shlex.join(["ctxpipe", "wrap", *options, "--", agent])


def next_command(
    advice: Advice, formats: Sequence[str], files: Sequence[str], compared: Sequence[str]
) -> str:
    """Return the command to run after *advice* about recordings of *formats* in *files*.

    It runs the agent with the policy. For recordings of another program it writes the page, which
    shows what leaves the context in which turn. If the advice is to change nothing, it compares
    further policies, or shows what fills the context if all were *compared*.
    """
    named_files = [shlex.quote(file) for file in files[:MAX_NAMED_FILES]]
    if len(files) > MAX_NAMED_FILES:
        named_files.append("…")
    names = " ".join(named_files)
    if advice.verb not in ("Use", "Try"):
        others = [policy for policy in POLICIES if policy not in compared and policy != "chat"]
        if others:
            return f"ctxpipe replay {names} --compare {','.join([compared[0], *others])}"
        return f"ctxpipe inspect {names}"
    command = agent_command(advice.policy, formats)
    if command:
        return command
    return f"ctxpipe replay {names} --compare {compared[0]},{advice.policy} --html report.html"


STAGES: Mapping[str, str] = {
    "coding": 'presets.coding_agent(storage, work_dir=".")',
    "lean": 'presets.coding_agent(storage, work_dir=".", old_exchanges="lines")',
    "chat": "presets.chat(storage)",
    "compact": "[Compact(archive=storage)]",
}
"""The stages of a policy, as code."""

ANTHROPIC = """\
from anthropic import AsyncAnthropic
from ctxpipe import Budget, {names}
from ctxpipe.adapters.anthropic import ctxpipe_middleware

storage = LocalStorage(".ctxpipe")
pipeline = ContextPipeline(
    {stages},
    budget=Budget(window={window}, trigger={trigger}),
)
shaping = ctxpipe_middleware(pipeline, session_id="job-1", journal=storage)
client = AsyncAnthropic(middleware=[shaping])
"""

OPENAI = """\
from openai import AsyncOpenAI
from ctxpipe import Budget, {names}
from ctxpipe.adapters.openai import ctxpipe_client

storage = LocalStorage(".ctxpipe")
pipeline = ContextPipeline(
    {stages},
    budget=Budget(window={window}, trigger={trigger}),
)
shaping = ctxpipe_client(pipeline, session_id="job-1", journal=storage)
client = AsyncOpenAI(http_client=shaping)
"""

OPENAI_FORMATS = ("OpenAI chat", "OpenAI responses", "codex rollout", "mini-swe-agent trajectory")
GEMINI_FORMATS = ("Gemini contents", "gemini-cli session")


def code_to_paste(policy: str, formats: Sequence[str]) -> str:
    """Return what to paste to use *policy*, for recordings of *formats*.

    For an agent that is installed this is the command that runs it. For a program of one's own it
    is code for the SDK of its API, with the imports, the budget of the replay, and the adapter.
    Returns "" for a policy that is not made of the package's stages, and for Gemini, whose requests
    the gateway shapes.
    """
    command = agent_command(policy, formats)
    if command:
        return command
    if policy not in STAGES or any(form in GEMINI_FORMATS for form in formats):
        return ""
    is_openai = bool(formats) and all(form in OPENAI_FORMATS for form in formats)
    template = OPENAI if is_openai else ANTHROPIC
    names = ["ContextPipeline", "LocalStorage", "Compact" if policy == "compact" else "presets"]
    return template.format(
        names=", ".join(sorted(names, key=lambda name: (name.islower(), name))),
        stages=STAGES[policy],
        window=f"{BUDGET.window:_}",
        trigger=f"{BUDGET.trigger:_}",
    )
