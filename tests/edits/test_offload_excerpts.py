"""Which lines of what leaves stay in the placeholders of batch offloading."""

from __future__ import annotations

from collections.abc import Sequence

from histories import assistant, conversation, step, tool_result, tool_use, user, view

from ctxpipe.edits.offload import Candidate
from ctxpipe.edits.offload_excerpts import placeholder_excerpts
from ctxpipe.markers.placeholders import MAX_SHOWN, Excerpt
from ctxpipe.messages import Message, rewrite, tool_calls, tool_results
from ctxpipe.tokens import TokenCounter

FACT = "the_port of service_one is 4711 on host_seven"
LOG = "\n".join(["nothing much to say"] * 40 + [FACT] + ["and so on"] * 40)


def excerpts(
    history: list[Message],
    leaving: Sequence[str] = ("t0",),
    excerpt: Excerpt | None = None,
    keep_recent: int = 1,
) -> list[str]:
    """What is shown of the results of these calls."""
    found = [result for result in tool_results(history) if result.tool_use_id in leaving]
    bare = rewrite(history, {result.place: "[Content offloaded to: /x]" for result in found})
    texts = [(Candidate(result, 1), str(result.content)) for result in found]
    counter = TokenCounter()
    return placeholder_excerpts(
        history, bare, texts, counter.text, excerpt or Excerpt(min_value=1), keep_recent
    )


def test_a_line_that_names_what_nothing_else_names_stays() -> None:
    [shown] = excerpts(conversation(user("Go."), step("t0", result=LOG)))

    assert shown == f"\nExcerpt, 1 of 81 lines:\n {FACT}"


def test_what_the_context_still_says_elsewhere_is_not_shown_again() -> None:
    history = conversation(user("Go."), step("t0", result=LOG), assistant(f"So {FACT}."))

    assert excerpts(history) == [""]


def test_a_line_that_leaves_twice_is_shown_once() -> None:
    steps = [step(f"t{n}", result=LOG) for n in range(2)]

    shown = excerpts(conversation(user("Go."), *steps), ("t0", "t1"))

    assert [FACT in one for one in shown] == [True, False]


def test_a_higher_value_shows_fewer_lines_and_a_share_of_nothing_none() -> None:
    history = conversation(user("Go."), step("t0", result=LOG))

    assert excerpts(history, excerpt=Excerpt(min_value=100)) == [""]
    assert excerpts(history, excerpt=Excerpt(min_value=1, max_share=0)) == [""]


def test_of_a_file_view_lines_are_worth_more_and_more_still_of_a_file_that_is_worked_on() -> None:
    line = "def read_port(service_name): return 4711"
    source = "\n".join(["pass"] * 40 + [line] + ["pass"] * 40)

    def is_shown(history: list[Message], min_value: float) -> bool:
        [shown] = excerpts(history, excerpt=Excerpt(min_value=min_value))
        return line in shown

    last = step("t1", "bash", {"command": "ls"})
    command = conversation(user("Go."), step("t0", result=source), last)
    seen = conversation(user("Go."), view("t0", "/src/port.py", source))
    edit = {"file_path": "/src/port.py", "old_string": "a", "new_string": "b"}
    worked_on = [*seen, *step("t1", "Edit", edit)]

    values = range(1, 60)
    ceilings = [
        max((value for value in values if is_shown(history, value)), default=0)
        for history in (command, [*seen, *last], worked_on)
    ]
    assert ceilings[0] < ceilings[1] < ceilings[2]


def test_long_lines_of_an_input_stay_by_what_calls_are_worth() -> None:
    body = "\n".join(["x"] * 300 + [FACT])
    history = conversation(
        user("Go."),
        assistant(tool_use("t0", "Write", {"path": "a", "content": body})),
        user(tool_result("t0")),
    )
    [call] = tool_calls(history)
    counter = TokenCounter()

    [shown] = placeholder_excerpts(
        history, history[:1], [(Candidate(call, 1), body)], counter.text, Excerpt(10), 1
    )

    assert FACT in shown


def test_an_excerpt_too_long_to_be_known_again_is_left_out() -> None:
    lines = [f"the_port of service_{n} is {4000 + n} on host_{n}" for n in range(400)]
    history = conversation(user("Go."), step("t0", result="\n".join(lines)))

    [shown] = excerpts(history, excerpt=Excerpt(min_value=0.1, max_share=1))

    assert len("\n".join(lines)) > MAX_SHOWN
    assert shown == ""


def test_the_excerpts_come_in_the_order_of_what_leaves() -> None:
    others = [FACT.replace("4711", str(4001 + n)).replace("one", f"no_{n}") for n in range(3)]
    steps = [step(f"t{n}", result=LOG.replace(FACT, others[n])) for n in range(3)]

    shown = excerpts(conversation(user("Go."), *steps), ("t0", "t1", "t2"))

    assert [other in one for other, one in zip(others, shown, strict=True)] == [True] * 3
