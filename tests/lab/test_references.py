"""The atoms that a reply uses of earlier messages, and the places where they are available."""

from __future__ import annotations

from histories import (
    assistant,
    conversation,
    histories,
    step,
    text,
    tool_result,
    tool_use,
    user,
    view,
)
from hypothesis import given, settings

from ctxpipe.lab.references import Context, Past, Store, Use, sources_to_fetch, use_of
from ctxpipe.messages import Message, compact_json
from ctxpipe.stages.reading.atoms import Atom, AtomIndex


class Lab:
    """A past, a context and a store that share an index."""

    def __init__(
        self, past: list[Message], context: list[Message], files: dict[str, str] | None = None
    ):
        index = AtomIndex()
        self.files = files or {}
        self.past, self.context, self.store = (
            Past(index),
            Context(index, "s"),
            Store(index, self.files),
        )
        self.past.learn(past)
        self.context.update(context)

    def use(self, *atoms: Atom) -> Use:
        return use_of(atoms, self.past, self.context, self.store)[0]


RESULT = "read_this and more_of_it"
HISTORY = conversation(
    user("Look for start_here."), step("t1", "bash", {"command": "look"}, RESULT)
)


def pointing(key: str) -> list[Message]:
    return conversation(
        user("Look for start_here."), step("t1", result=f"[Content offloaded to: /x/{key}]")
    )


def test_a_reply_uses_atoms_of_earlier_messages_only():
    lab = Lab(HISTORY, HISTORY)

    assert lab.past.uses_of(assistant("I did read_this, start_here and never_seen.")) == [
        "Iread_this",
        "Istart_here",
    ]


def test_an_atom_in_the_context_is_visible():
    assert Lab(HISTORY, HISTORY).use("Iread_this") == Use(visible=0.5)


def test_an_atom_in_a_file_whose_path_is_visible_is_one_call_away():
    files = {"s/t1.md": RESULT}

    assert Lab(HISTORY, pointing("s/t1.md"), files).use("Iread_this").pointer == 0.5
    assert Lab(HISTORY, HISTORY[:1], files).use("Iread_this").lost == 0.5


def test_an_archive_is_a_file_of_messages():
    lines = "a line of the result that somebody will want to quote"
    past = conversation(user("Go."), step("t1", result=f"first\n{lines}"))

    lab = Lab(
        past, [user("[archive: /x/s/compact-1.json]")], {"s/compact-1.json": compact_json(past)}
    )

    assert lab.use(f"L{lines}").pointer == 1


def test_a_file_that_has_grown_has_its_new_text_too():
    lab = Lab(HISTORY, [user("See /x/s/log.jsonl")], {"s/log.jsonl": "read_this\n"})
    lab.files["s/log.jsonl"] += "more_of_it\n"

    assert lab.use("Iread_this", "Imore_of_it").pointer == 1


def test_a_file_that_was_overwritten_no_longer_has_its_old_atoms():
    lab = Lab(HISTORY, [user("See /x/s/log.jsonl")], {"s/log.jsonl": "read_this\n"})
    lab.files["s/log.jsonl"] = "more_of_it\n"

    use = lab.use("Iread_this", "Imore_of_it")
    assert (use.pointer, use.lost) == (0.5, 0.5)


LINE = "def read_this(and_more): return 1"
NOTE = "[Earlier steps, shortened; whole in /x/s/s{1..1}.md]\n1 bash look_there → 9 chars\n " + LINE


def test_an_atom_that_only_a_note_shows_is_doubtful():
    past = conversation(user("Go."), step("t1", "bash", {"command": "look_there"}, LINE))
    lab = Lab(past, [user("Go."), user(NOTE)])

    assert lab.context.is_doubtful(f"L{LINE}")
    assert lab.context.is_doubtful("Ilook_there")
    assert lab.use("Ilook_there").visible == 0.5


def test_an_atom_that_another_text_shows_too_is_not_doubtful():
    past = conversation(user("Go."), step("t1", result=LINE))
    both = [user(NOTE), user("What is read_this?")]
    lab = Lab(past, both)

    assert not lab.context.is_doubtful("Iread_this")
    assert lab.context.is_doubtful("Iand_more")

    lab.context.update([*both, user("And and_more?")])

    assert not lab.context.is_doubtful("Iand_more")


def test_an_atom_that_is_not_in_the_context_is_not_doubtful():
    past = conversation(user("Go."), step("t1", result=LINE))
    lab = Lab(past, [user(NOTE)])
    lab.context.update([user("Go on.")])

    assert not lab.context.is_doubtful(f"L{LINE}")


def test_an_atom_in_a_chosen_line_is_visible_and_not_counted_by_strict_recall():
    past = conversation(user("Go."), step("t1", result=LINE))
    lab = Lab(past, [user(NOTE)])
    places = lab.past, lab.context, lab.store
    use, missing = use_of(["Iread_this"], *places)

    assert use == Use(visible=0.5, doubtful=0.5)
    assert (use.recall, use.strict_recall) == (1, 0)
    assert missing == {}


def test_an_atom_of_a_repeatable_file_view_counts_as_reread():
    past = conversation(user("Go."), view("t1", "/src/app/main.py", RESULT))

    assert Lab(past, [user("We were in /src/app/main.py.")]).use("Iread_this") == Use(reread=0.5)
    assert Lab(past, [user("We were there.")]).use("Iread_this") == Use(lost=0.5)


def test_missing_atoms_are_returned_with_their_weight():
    lab = Lab(HISTORY, HISTORY[:1])
    _, missing = use_of(["Iread_this", "Istart_here"], lab.past, lab.context, lab.store)

    assert missing == {"Iread_this": 0.5}


def test_a_missing_atom_is_fetched_from_its_newest_source_by_the_user():
    past = conversation(
        user("Go."),
        step("t1", result="read_this here"),
        step("t2", result="read_this again"),
        assistant("I will read_this."),
    )
    lab = Lab(past, [])

    assert [source.text for source in sources_to_fetch(["Iread_this"], lab.past)] == [
        "read_this again"
    ]


def test_an_atom_that_only_the_model_wrote_is_fetched_from_its_block_once():
    past = [user("Go."), assistant("read_this then more_of_it"), user("Ok.")]

    roles = [
        source.role
        for source in sources_to_fetch(["Iread_this", "Imore_of_it"], Lab(past, []).past)
    ]
    assert roles == ["assistant"]


def test_an_updated_context_removes_old_atoms_and_keeps_the_others():
    lab = Lab(HISTORY, HISTORY)
    lab.context.update(HISTORY[:1])

    assert "Iread_this" not in lab.context
    assert "Istart_here" in lab.context


def test_a_path_counts_while_one_placeholder_shows_it():
    lab = Lab([], pointing("s/t1.md") + pointing("s/t1.md"))
    assert lab.context.keys == {"s/t1.md"}
    lab.context.update([])
    assert lab.context.keys == set()


def test_a_note_names_the_files_of_all_its_steps():
    note = user("[Earlier steps, shortened; whole in /x/s/s{1..3}.md]\n1 a\n2 b\n3 c")
    lab = Lab(HISTORY, [note], {"s/s2.md": RESULT})

    assert lab.context.keys >= {"s/s1.md", "s/s2.md", "s/s3.md"}
    assert lab.use("Iread_this") == Use(pointer=0.5)


def test_paths_of_other_sessions_are_ignored():
    assert Lab([], pointing("other/t1.md")).context.keys == set()


def test_each_block_of_a_message_is_a_separate_source():
    past = [
        user("Go."),
        assistant(tool_use("a"), tool_use("b")),
        user(tool_result("a", "one_thing"), tool_result("b", [text("other_thing")])),
    ]
    lab = Lab(past, [])

    found = [(s.call_id, s.text) for s in lab.past.sources[-2:]]
    assert found == [("a", "one_thing"), ("b", "other_thing")]


@settings(max_examples=settings().max_examples // 10)
@given(histories(2), histories(2))
def test_an_updated_context_equals_a_new_one(before: list[Message], after: list[Message]):
    kept, anew = Lab([], before), Lab([], [*before[:2], *after])
    kept.context.update([*before[:2], *after])
    index = AtomIndex()

    for message in [*before, *after]:
        for atom in index.message(message):
            assert (atom in kept.context) == (atom in anew.context)


def test_uses_can_be_added_and_without_a_use_the_recall_is_one():
    both = Use(visible=3, pointer=1) + Use(reread=2, lost=2)

    assert both == Use(3, 1, 2, 2)
    assert (both.recall, both.with_reread) == (3 / 8, 6 / 8)
    assert (Use().recall, Use().with_reread) == (1, 1)
