"""Policies by name, and ways to keep to a budget."""

from __future__ import annotations

import pickle

import pytest
from workdays import conversation

from ctxpipe.errors import SettingsError
from ctxpipe.lab.policies import POLICIES, Policy, policies
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import check


@pytest.mark.parametrize("name", POLICIES)
async def test_each_policy_gives_a_valid_context_and_can_be_pickled(name: str):
    policy = pickle.loads(pickle.dumps(Policy(name)))  # noqa: S301  our own

    result = await policy(Workbench()).run(conversation(turns=12), session_id="s")

    assert not check(result.messages)


def test_an_unknown_policy_is_refused_with_the_names_of_the_policies():
    with pytest.raises(SettingsError, match="there is no policy 'all'; give none, compact"):
        policies(["none", "all"])
