"""The names of functions: a verb for what acts, a noun or a question for what answers.

A past participle ("fitted", "told") is neither. Where one begins a name all the same, the reason is
here.
"""

from __future__ import annotations

import pytest
from syntax import functions

MOST = 30

IRREGULAR = {
    *("begun", "built", "chosen", "done", "drawn", "found", "given", "gone", "held", "hidden"),
    *("kept", "known", "left", "lost", "made", "paid", "said", "seen", "sent", "shown", "sold"),
    *("spent", "taken", "taught", "thought", "told", "written"),
}
# They end as participles do, and are none.
OTHER_WORDS = {"embed", "exceed", "feed", "indeed", "need", "proceed", "sed", "seed", "speed"}

NOUN = "says which kind of thing the noun after it is"
API = "the API's own word"
STATE = "a property or question that is public: a reader asks it of the object before the dot"
EVENT = "an event, of which an observer is told"
RESULT = "public, and reads as one phrase with what is before or after it"
REASONS = {
    "acknowledged_count": NOUN,
    "appended": STATE,
    "billed": EVENT,
    "cached": STATE,
    "cached_tokens": API,
    "changed": STATE,
    "dropped": STATE,
    "hashed_name": NOUN,
    "interrupted_result": NOUN,
    "measured_estimate": NOUN,
    "overloaded": API,
    "pinned_indices": NOUN,
    "quoted_file_names": NOUN,
    "reached": STATE,
    "redacted_thinking": API,
    "refused": EVENT,
    "restored_path": NOUN,
    "restored_text": NOUN,
    "saved": STATE,
    "sent": EVENT,
    "shaped": EVENT,
    "stored_text": NOUN,
    "touched_paths": NOUN,
    "unanswered_calls": NOUN,
    "viewed_path": NOUN,
    "written_lines": NOUN,
    "written_paths": NOUN,
}


def is_participle(word: str) -> bool:
    """Whether *word* is the past participle of a verb."""
    if word in IRREGULAR:
        return True
    return word.endswith("ed") and len(word) > 3 and word not in OTHER_WORDS


def first_word(name: str) -> str:
    """The first word of *name*."""
    return name.strip("_").partition("_")[0]


def test_a_name_begins_with_a_participle_only_for_a_reason():
    names = [function.name for _, function in functions()]
    found = {name for name in names if is_participle(first_word(name))}

    assert found == set(REASONS)
    assert len(found) <= MOST


@pytest.mark.parametrize("word", ["fitted", "told", "known", "written", "replaced"])
def test_participles_are_known(word):
    assert is_participle(word)


@pytest.mark.parametrize("word", ["fit", "tell", "need", "shorten", "seed", "sed", "writes"])
def test_other_words_are_none(word):
    assert not is_participle(word)


@pytest.mark.parametrize(
    ("name", "word"), [("told", "told"), ("_lost_files", "lost"), ("__init__", "init")]
)
def test_the_first_word_counts(name, word):
    assert first_word(name) == word
