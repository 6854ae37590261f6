"""Policies by name, and ways to keep to a budget."""

from __future__ import annotations

import pickle

import pytest
from workdays import conversation

from ctxpipe.errors import SettingsError
from ctxpipe.lab.policies import BUDGETED, NONE, POLICIES, BudgetedPolicy, Policy, policies
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import check
from ctxpipe.prices import Prices
from ctxpipe.stages.gates import RentOrBuyGate
from ctxpipe.stages.offload import BatchOffload
from ctxpipe.tokens import TokenCounter


@pytest.mark.parametrize("name", POLICIES)
async def test_each_policy_gives_a_sound_context_and_can_go_to_another_process(name: str):
    policy = pickle.loads(pickle.dumps(Policy(name)))  # noqa: S301  our own

    result = await policy(Workbench()).run(conversation(turns=12), session_id="s")

    assert not check(result.messages)


async def test_no_management_gives_the_very_same_list():
    history = conversation()

    assert (await Policy(NONE)(Workbench()).run(history, session_id="s")).messages is history


def test_prices_reach_the_gate():
    prices = Prices.relative(read=0.05)
    batch = Policy("rent-or-buy", prices)(Workbench()).stages[0]

    assert isinstance(batch, BatchOffload)
    assert isinstance(batch.gate, RentOrBuyGate)
    assert batch.gate.prices is prices


def test_a_name_that_does_not_exist_is_told_with_those_that_do():
    with pytest.raises(SettingsError, match="there is no policy 'all'; there are none, keep-last"):
        policies(["none", "all"])
    with pytest.raises(
        SettingsError, match="there is no way 'all' to keep to a budget; there are keep last"
    ):
        BudgetedPolicy("all", 1000)


@pytest.mark.parametrize("name", BUDGETED)
async def test_each_way_keeps_to_its_budget(name: str):
    history = conversation(turns=20)
    budget = TokenCounter().total(history) // 2

    result = await BudgetedPolicy(name, budget)(Workbench()).run(history, session_id="s")

    assert not check(result.messages)
    assert TokenCounter().total(result.messages) <= budget
