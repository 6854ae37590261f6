"""The sentences and the advice about a comparison of policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from sdks import needs_middleware, responses_of

from ctxpipe.lab.advice import (
    AGENT_COMMANDS,
    Advice,
    advice_sentence,
    advise,
    code_to_paste,
    next_command,
)
from ctxpipe.lab.orders import RulesShare
from ctxpipe.lab.page import lead
from ctxpipe.lab.policies import BUDGET, POLICIES
from ctxpipe.lab.readers.table import READERS
from ctxpipe.lab.report import Figures
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.testing import MessagesServer, OpenAIServer

NONE = Figures("none", 9, 4.0, 1.0, 1.0, 0.9, 120_000.0, 0, 1.0, 1.0, 1.0, 1.0)
CODING = replace(NONE, policy="coding", cost=3.0, ratio=0.75, seen=0.95, strict=0.95)
LEAN = replace(NONE, policy="lean", cost=2.0, ratio=0.5, seen=0.8, strict=0.8, fetched=7)


def advised(*rows: Figures) -> tuple[str, str]:
    advice = advise([NONE, *rows])
    return advice.verb, advice.policy


def test_the_cheapest_policy_that_shows_enough_is_advised():
    cheaper = replace(CODING, policy="cheaper", cost=2.5, ratio=0.625)

    assert advised(CODING, cheaper, LEAN) == ("Use", "cheaper")


def test_a_policy_that_shows_less_is_advised_with_a_reservation():
    advice = advise([NONE, LEAN])

    assert (advice.verb, advice.policy) == ("Try", "lean")
    assert "But it left 80.0% in sight" in advice.reason


def test_the_reason_names_the_cost_and_the_texts_that_govern_the_agent():
    advice = advise([NONE, CODING], {"coding": RulesShare(0.975, "skill text", 0.9)})

    assert advice.verb == "Use"
    assert advice.reason.startswith("It costs 0.750 times as much as none, the least of those")
    assert advice.reason.endswith(
        "Of skills, plans, rules, open errors and jobs 97.5% stayed in the context; "
        "least of all skill text: 90.0%. See ctxpipe survive."
    )


def test_a_policy_that_loses_what_governs_the_agent_is_advised_with_a_reservation():
    cheaper = replace(CODING, policy="cheaper", cost=2.5, ratio=0.625)
    rules = {"cheaper": RulesShare(0.6, "skill text", 0.2), "coding": RulesShare(1.0, "job", 1.0)}

    assert advise([NONE, CODING, cheaper], rules)[:2] == ("Use", "coding")
    assert advise([NONE, cheaper], rules)[:2] == ("Try", "cheaper")
    assert "60.0% stayed in the context" in advise([NONE, cheaper], rules).reason


def test_without_a_text_to_look_for_the_reason_names_none():
    assert "skills" not in advise([NONE, CODING], {"coding": None}).reason


@pytest.mark.parametrize("row", [replace(CODING, cost=3.96, ratio=0.99), replace(LEAN, found=0.85)])
def test_a_policy_that_saves_nothing_or_loses_too_much_is_not_advised(row: Figures):
    advice = advise([NONE, row])

    assert (advice.verb, advice.policy) == ("Keep", "none")
    assert advice.reason.startswith("No policy that saves 2.0%")


def test_a_baseline_that_does_not_fit_the_window_is_not_advised():
    large = replace(NONE, peak=250_000.0)
    costly = replace(CODING, cost=5.0, ratio=1.25)

    advice = advise([large, costly])

    assert (advice.verb, advice.policy) == ("Use", "coding")


def test_if_no_policy_fits_the_smallest_is_named():
    rows = [replace(NONE, peak=300_000.0), replace(CODING, peak=220_000.0)]

    assert advise(rows).policy == "coding"


def test_the_sentence_names_the_cost_and_the_share_that_stayed_visible():
    assert lead("9 turns", CODING, NONE, "dollars") == (
        "9 turns: coding cost $3.00 instead of $4.00 (none), 25.0% less, and 95.0% of what the "
        "replies used stayed in sight (100.0% with what could be read back). "
        "The largest context was 120,000 tokens instead of 120,000."
    )


def test_the_sentence_names_a_higher_cost_and_the_unit():
    more = replace(CODING, cost=6.0, ratio=1.5)

    assert lead("1 turn", more, NONE, "input tokens").startswith(
        "1 turn: coding cost 6 input tokens instead of 4 (none), 50.0% more, and"
    )


# What to do next ----------------------------------------------------------------------------------


def sentence(*rows: Figures) -> str:
    return advice_sentence(advise(rows), rows)


def test_the_advice_is_one_sentence_with_the_cost_and_the_largest_prompt():
    assert sentence(NONE, CODING) == (
        "Use coding: it costs 75.0% of none, leaves 95.0% of what the replies used in sight and "
        "has prompts of at most 120,000 tokens."
    )


def test_the_advice_says_that_the_baseline_would_have_been_refused():
    told = sentence(replace(NONE, peak=241_441.0), CODING)

    assert told.endswith("(none: 241,441, which a window of 200,000 refuses).")


def test_the_advice_to_keep_the_baseline_has_its_reason():
    assert sentence(NONE, replace(CODING, cost=4.0, ratio=1.0)).startswith("Keep none: no policy")


def test_the_advice_where_nothing_fits_names_what_comes_closest():
    rows = [replace(NONE, peak=400_000.0), replace(CODING, peak=300_000.0)]

    assert sentence(*rows) == (
        "Shorten further than coding: no policy keeps every prompt below 200,000 tokens, and this "
        "comes closest, with 300,000."
    )


USE_CODING = Advice("Use", "coding", "…")
KEEP = Advice("Keep", "none", "…")


@pytest.mark.parametrize(
    ("form", "policy", "command"),
    [
        ("Claude Code session", "coding", "ctxpipe wrap -- claude"),
        ("codex rollout", "lean", "ctxpipe wrap --preset lean -- codex"),
        ("gemini-cli session", "coding", "ctxpipe wrap -- gemini"),
        (
            "mini-swe-agent trajectory",
            "coding",
            "ctxpipe wrap --observation '<returncode>' -- mini",
        ),
        (
            "OpenAI chat",
            "coding",
            "ctxpipe replay 'my file.json' --compare none,coding --html report.html",
        ),
        (
            "Claude Code session",
            "compact",
            "ctxpipe replay 'my file.json' --compare none,compact --html report.html",
        ),
    ],
)
def test_the_next_command_runs_the_agent_or_writes_the_page(form: str, policy: str, command: str):
    advice = Advice("Use", policy, "…")

    assert next_command(advice, [form], ["my file.json"], ["none", policy]) == command


def test_an_agent_is_known_for_each_reader_of_an_agent():
    readers = {reader.format for reader in READERS}

    assert set(AGENT_COMMANDS) <= readers
    assert len(readers - set(AGENT_COMMANDS)) == 6  # those that programs of one's own write


def test_the_next_command_for_several_agents_is_the_page():
    forms = ["Claude Code session", "codex rollout"]

    command = next_command(USE_CODING, forms, ["a", "b", "c"], ["none", "coding"])

    assert command == "ctxpipe replay a b … --compare none,coding --html report.html"


def test_after_the_advice_to_keep_the_baseline_other_policies_are_compared():
    forms = ["Anthropic messages"]

    command = next_command(KEEP, forms, ["a"], ["none", "coding"])
    last = next_command(KEEP, forms, ["a"], ["none", *POLICIES])

    assert command == "ctxpipe replay a --compare none,compact,clear-old,lean"
    assert last == "ctxpipe inspect a"


# Code to paste ------------------------------------------------------------------------------------


async def pasted(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that *code* has defined, pasted into a program in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    await to_thread.run_sync(exec, compile(code, "pasted.py", "exec"), names)
    return names


@needs_middleware
@pytest.mark.parametrize("policy", ["coding", "lean", "chat", "compact"])
async def test_the_code_for_anthropic_runs_as_it_is_pasted(policy: str, tmp_path, monkeypatch):
    code = code_to_paste(policy, ["Anthropic messages"])
    async with MessagesServer(["Done."]) as api:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
        names = await pasted(code, tmp_path, monkeypatch)
        async with names["client"] as client:
            reply = await client.messages.create(
                model=EXAMPLE_MODEL,
                max_tokens=100,
                messages=[{"role": "user", "content": "Go."}],
            )

    assert reply.content[0].text == "Done."
    assert not any(request.problems for request in api.requests)
    assert names["pipeline"].budget == BUDGET


@pytest.mark.parametrize("policy", ["coding", "lean", "chat", "compact"])
@pytest.mark.parametrize("form", ["OpenAI chat", "OpenAI responses"])
async def test_the_code_for_openai_runs_as_it_is_pasted(
    policy: str, form: str, tmp_path, monkeypatch
):
    code = code_to_paste(policy, [form])
    async with OpenAIServer(["Done."]) as api:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{api.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        names = await pasted(code, tmp_path, monkeypatch)
        async with names["client"] as client:
            if form == "OpenAI chat":
                messages = [{"role": "user", "content": "Go."}]
                reply = await client.chat.completions.create(model="gpt-5.2", messages=messages)
                said = reply.choices[0].message.content
            else:
                reply = await responses_of(client).create(model="gpt-5.2", input="Go.")
                said = reply.output_text

    assert said == "Done."
    assert names["pipeline"].budget == BUDGET


def test_for_an_agent_the_command_that_runs_it_is_pasted():
    assert code_to_paste("coding", ["Claude Code session"] * 2) == "ctxpipe wrap -- claude"


@pytest.mark.parametrize("policy", ["none", "clear-old", "mine"])
def test_there_is_no_code_for_a_policy_that_is_no_list_of_stages(policy: str):
    assert code_to_paste(policy, ["OpenAI chat"]) == ""
