"""No id, however hostile, becomes a file name that leads elsewhere or stands for another id."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.placeholders.names import content_hash, safe_name, session_folder, with_suffix

HOSTILE = [
    *("../../x", "../../../../etc/passwd", "/etc/x", "a\\b", "a/b", "a\0b", ".", "..", ".hidden"),
    *("", " ", "x" * 1500, "漢字", "é", "e\u0301", "🙂", "\ud83d", "CON", "con", "con.txt"),
    *("NUL.tar.gz", "nul. ", "aux-", "LPT1", "~", "~root", "$HOME", "a\nb", "functions.Bash:0"),
    *("-rf", "a%2fb", "a b", "..\u2215x"),
]
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def is_harmless(name: str) -> bool:
    return (
        re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name) is not None
        and len(name.encode()) <= 120
        and not DEVICE.match(name)
    )


@pytest.mark.parametrize(
    "name",
    ["toolu_01AbC", "a", "0", "_x", "-x", "a.b-c_d", "A" * 120, "call_0", "con-1", "console"],
)
def test_a_clean_id_is_its_own_file_name(name):
    assert safe_name(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_id_becomes_a_harmless_name(name: str):
    assert is_harmless(safe_name(name))


def test_a_changed_id_can_still_be_recognized():
    assert re.fullmatch(r"functions\.Bash-0-[0-9a-f]{8}", safe_name("functions.Bash:0"))
    assert re.fullmatch(r"id-con\.txt-[0-9a-f]{8}", safe_name("con.txt"))
    assert re.fullmatch(r"id-[0-9a-f]{8}", safe_name(""))


@given(
    st.text(st.characters(), max_size=300)
    | st.from_regex(r"[A-Za-z0-9._/\\-]{0,130}", fullmatch=True)
)
def test_any_id_becomes_a_harmless_name(name: str):
    assert is_harmless(safe_name(name))


@given(st.lists(st.text(max_size=20) | st.text("./\\ab", max_size=6), unique=True, max_size=20))
def test_different_ids_stay_different(names: list[str]):
    assert len({safe_name(name) for name in names}) == len(names)


def test_a_name_is_the_same_in_any_process():
    assert safe_name("a/b") == "a-b-c14cddc0"


# Folders of sessions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "job-42",
        "a",
        "0",
        "_x",
        "a.b-c_d",
        "a" * 120,
        "550e8400-e29b-41d4-a716-446655440000",
        "tenant-alice-9bdbb017",
    ],
)
def test_a_plain_lower_case_session_id_is_its_own_folder(name):
    assert session_folder(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in HOSTILE if name not in ("aux-", "-rf")),
        "A",
        "Job-42",
        "a.",
        "a..",
        "A" * 120,
        "a" * 121,
        f"a-{'0' * 16}",
        f"-{'f' * 16}",
        "com1.x",
    ],
)
def test_any_other_session_id_becomes_a_harmless_folder_with_a_hash(name):
    folder = session_folder(name)

    assert is_harmless(folder)
    assert re.fullmatch(r"[a-z0-9_-][a-z0-9._-]*-[0-9a-f]{16}", folder)


@pytest.mark.parametrize(
    "victim", ["tenant/alice", "Tenant-Alice", "con", "", "\ud83d", "x" * 500, "é"]
)
def test_no_session_id_can_be_chosen_to_meet_the_folder_of_another(victim):
    folders = [session_folder(victim)]
    for _ in range(3):
        folders.append(session_folder(folders[-1]))

    assert len(set(folders)) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("job", "JOB"),
        ("ß", "ss"),
        ("İ", "i\u0307"),
        ("\u212a", "k"),
        ("é", "e\u0301"),
        ("a", "a."),
        ("a", "a "),
        ("a/b", "a\\b"),
        ("\ud83d", "\\ud83d"),
        ("x" * 200, "x" * 201),
    ],
)
def test_session_ids_that_a_disk_may_treat_as_equal_have_two_folders(one, other):
    assert session_folder(one) != session_folder(other)


@st.composite
def session_ids(draw: st.DrawFn) -> str:
    """Ids, and what others make of them: their folders, and another case."""
    name = draw(st.text(max_size=12) | st.text("aA./\\-0b", max_size=6) | st.sampled_from(HOSTILE))
    for change in draw(
        st.lists(st.sampled_from([session_folder, safe_name, str.upper, str.lower]), max_size=3)
    ):
        name = change(name)
    return name


@given(st.lists(session_ids(), unique=True, max_size=20))
def test_different_sessions_have_different_folders_also_where_case_is_ignored(
    names: list[str],
):
    folders = [session_folder(name) for name in names]

    assert len({folder.casefold() for folder in folders}) == len(names)
    assert all(is_harmless(folder) and folder == folder.lower() for folder in folders)


# Suffixes -----------------------------------------------------------------------------------------


def test_a_suffix_goes_before_the_extension():
    assert with_suffix("a/b.md", "1") == "a/b-1.md"
    assert with_suffix("b.c.md", "x") == "b.c-x.md"
    assert with_suffix("b", "1") == "b-1"


def test_a_text_that_cannot_be_encoded_has_a_hash_of_its_own():
    assert content_hash("\ud83d") != content_hash("\ud83e")
    assert re.fullmatch(r"[0-9a-f]{8}", content_hash("\ud83d"))
