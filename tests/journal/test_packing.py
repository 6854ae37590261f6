"""Messages and texts that a journal lacks, found in the caller's history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.journal.packing import Packing
from ctxpipe.journal.unpacking import CallerHistory
from ctxpipe.messages import Message

WORDS = st.sampled_from(["a", "b", "c"])
LONG = "a line of a result\n" * 700


def message(text: str) -> Message:
    return {"role": "user", "content": text}


class Digests:
    """Counts the digests that are computed."""

    def __init__(self) -> None:
        self.count = 0

    def of_message(self, one: Message) -> str:
        self.count += 1
        return f"m{one['content']}"

    def of_text(self, text: str) -> str:
        self.count += 1
        return f"t{text}"


@given(st.lists(WORDS, max_size=6), WORDS, st.none() | st.integers(0, 8))
def test_a_message_is_found_by_its_digest_wherever_it_was_expected(words, word, index):
    digests = Digests()
    history = [message(text) for text in words]
    caller = CallerHistory(history, digests.of_message, digests.of_text)
    found = caller.message(f"m{word}", index)
    assert (found is None) is (word not in words)
    assert found is None or found["content"] == word


def test_messages_at_their_old_places_need_no_digests_of_others():
    digests = Digests()
    history = [message(str(number)) for number in range(100)]
    caller = CallerHistory(history, digests.of_message, digests.of_text)
    for _ in range(2):
        assert caller.message("m7", 7) is history[7]
    assert digests.count == 1


def test_a_text_is_found_in_any_message():
    caller = CallerHistory(
        [message("one"), message("two")], Digests().of_message, lambda text: text
    )
    assert caller.text("two") == "two"
    assert caller.text("three") is None


@given(st.text(max_size=50), st.integers(1, 5))
def test_the_digest_of_a_text_does_not_depend_on_how_it_is_computed(text, times):
    packing = Packing(None, "s", texts=True)
    with pytest.MonkeyPatch.context() as patch:
        digest = packing._text_digest(text * times)
        patch.setattr("ctxpipe.journal.packing._SHORT", -1)
        assert packing._text_digest(text * times) == digest


async def test_a_session_continues_with_the_texts_of_its_files(tmp_path):
    history: list[Any] = [message("Go.")]
    for number in range(3):
        call = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"{number} {LONG}"}
        history.append({"role": "assistant", "content": [call]})
        history.append({"role": "user", "content": [result]})
    storage = LocalStorage(tmp_path)
    first = (
        await ContextPipeline([DirectOffload(storage)]).session("s", journal=storage).run(history)
    )
    assert first.changed

    other = LocalStorage(tmp_path)
    session = ContextPipeline([DirectOffload(other)]).session("s", journal=other)
    assert (await session.run(history)).messages == first.messages
    assert await session.history() == history
