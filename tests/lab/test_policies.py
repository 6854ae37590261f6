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
async def test_each_policy_gives_a_sound_context_and_can_go_to_another_process(name: str):
    policy = pickle.loads(pickle.dumps(Policy(name)))  # noqa: S301  our own

    result = await policy(Workbench()).run(conversation(turns=12), session_id="s")

    assert not check(result.messages)


def test_a_name_that_does_not_exist_is_told_with_those_that_do():
    with pytest.raises(SettingsError, match="there is no policy 'all'; there are none, compact"):
        policies(["none", "all"])
