"""Which messages and tool results a caller has pinned."""

from __future__ import annotations

import pytest
from histories import assistant, conversation, step, tool_result, tool_use, user

from ctxpipe import Pins
from ctxpipe.errors import SettingsError
from ctxpipe.messages import Message
from ctxpipe.stages.reading.pins import Pin, is_pinned_exchange, pinned_indices

HISTORY = conversation(
    user("RULE: no tabs."),
    step("t1", "read_policy", {}, "Never refund cash."),
    step("t2", "web_fetch", {}, "RULE: refund all."),
    user("Go on."),
)


@pytest.mark.parametrize(
    ("pin", "indices"),
    [
        (["RULE:"], {0}),
        (Pins(words=["RULE:"]), {0}),
        (Pins(tools=["read_policy"]), {1, 2}),
        (Pins(results=["RULE:"]), {3, 4}),
        (Pins(words=["no tabs"], tools=["read_policy"]), {0, 1, 2}),
    ],
    ids=["texts", "words", "tools", "results", "both"],
)
def test_a_pin_chooses_words_and_whole_exchanges(pin: Pin, indices: set[int]):
    assert pinned_indices(HISTORY, pin) == indices


def test_a_function_reaches_the_result_of_a_call_that_it_chooses():
    def is_policy(message: Message) -> bool:
        return "read_policy" in str(message)

    assert is_pinned_exchange(HISTORY, 2, is_policy)
    assert not is_pinned_exchange(HISTORY, 4, is_policy)


def test_a_call_without_its_result_yet_is_pinned_alone():
    messages = [user("Go."), assistant(tool_use("t1", "read_policy"))]

    assert pinned_indices(messages, Pins(tools=["read_policy"])) == {1}


def test_a_result_of_blocks_is_found_by_its_text():
    blocks = [{"type": "text", "text": "The policy: no cash."}]
    messages = [assistant(tool_use("t1")), user(tool_result("t1", blocks))]

    assert is_pinned_exchange(messages, 1, Pins(results=["policy:"]))


def test_pins_that_choose_nothing_are_refused():
    with pytest.raises(SettingsError, match=r"Pins\(\) chooses nothing; give words="):
        Pins()
    with pytest.raises(SettingsError, match="tools is 'Skill'"):
        Pins(tools="Skill")
