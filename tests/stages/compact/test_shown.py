"""Whether what a conversation was shown of a file allows the file to come back."""

from __future__ import annotations

import json

import pytest

from ctxpipe.stages.compact.shown import ShownText, reason_to_withhold

FILE = '{\n  "host": "db.internal",\n  "db_login": "hunter2",\n\t"größe": 3\n}\n'
LINES = FILE.splitlines()
NOTHING_SHOWN = "no result has shown a line of what it holds now"
LONG = ", ".join(f'"key{n}": "value {n}"' for n in range(400))


def reason(*views: str, text: str = FILE, current: bool = True) -> str:
    return reason_to_withhold([ShownText(view, current) for view in views], text, str)


REFUSALS = [
    "",
    " \n\n",
    "[redacted]",
    "The user chose not to proceed.",
    "path not in workspace",
    "This tool is disabled in plan mode",
    "Отказано в доступе пользователем",
    "拒绝访问",
    "アクセスが許可されていません",
    "Accesso negato dall'utente",
    '{\n  "status": "declined"\n}',
    "}",
    "1\t\n2\t\n3\t\n",
    "1→\n2→[hidden]\n",
    "null",
]


@pytest.mark.parametrize("shown", REFUSALS)
@pytest.mark.parametrize("current", [True, False])
def test_a_result_that_shows_no_line_of_the_file_proves_nothing(shown: str, current):
    assert reason(shown, current=current) == NOTHING_SHOWN


def test_a_file_that_no_result_has_shown_does_not_come_back():
    assert reason() == NOTHING_SHOWN


@pytest.mark.parametrize("current", [True, False])
@pytest.mark.parametrize(
    "gutter",
    [
        *(
            "     {}→",
            "{:6}\t",
            "{}: ",
            "{}:",
            "{:>4} | ",
            "{:>4} │ ",
            "{}|",
            "L{}: ",
            "{} ",
            "{}. ",
        ),
        *("[{}] ", "line {}: ", "{}#a3|", "{}) "),
    ],
)
def test_line_numbers_of_any_kind_are_taken_off(gutter, current):
    shown = "".join(f"{gutter.format(n)}{line}\n" for n, line in enumerate(LINES, 1))

    assert reason(shown, current=current) == ""


@pytest.mark.parametrize(
    "shown",
    [
        FILE.replace("\n", "\r\n"),
        FILE.replace("\t", "    "),
        FILE.replace("\n", "  \n"),
        FILE.replace("ö", "o\u0308"),
        "\ufeff" + FILE,
        LINES[1],
        "\n".join(LINES[1:3]),
    ],
)
def test_blanks_line_ends_forms_of_a_letter_and_ranges_make_no_difference(shown):
    assert reason(shown) == ""


@pytest.mark.parametrize(
    "shown",
    [
        f"<returncode>0</returncode>\n<output>\n{FILE}</output>",
        f"Exit code: 0\nWall time: 0 seconds\nOutput:\n{FILE}",
        f"<path>/w/a</path>\n<type>file</type>\n<content>\n{FILE}\n\n(End of file)\n</content>",
        f"[File: /w/a (5 lines total)]\n{FILE}(Open file: /w/a)\n(Current directory: /w)\nbash-$",
        f"{FILE}\n[122 more lines in file. Use offset=555 to continue]",
        f"{FILE}\n... (9 more lines not shown. Use offset=6 to continue reading)",
        f"{FILE}\n\n<system-reminder>\nMind this.\n</system-reminder>",
        f"```json\n{FILE}```",
        f"Here's the result of running `cat -n` on a:\n{FILE}",
        json.dumps({"output": FILE, "metadata": {"exit_code": 0}}),
        json.dumps([{"type": "text", "text": FILE}]),
    ],
)
def test_what_agents_add_to_a_file_is_no_line_that_it_lacks(shown):
    assert reason(shown) == ""


HIDDEN = [
    FILE.replace("hunter2", "[hidden]"),
    FILE.replace("hunter2", "****"),
    FILE.replace('  "db_login": "hunter2",', "<redacted>"),
    FILE.replace('  "db_login": "hunter2",', "[1 line hidden]"),
    FILE.replace('  "db_login": "hunter2",', "..."),
    FILE.replace("hunter2", "…"),
    "".join(f"{n:6}\t{line}\n" for n, line in enumerate(LINES, 1)).replace("hunter2", "•••"),
    json.dumps({"output": FILE.replace("hunter2", "<secret>")}),
]


@pytest.mark.parametrize("shown", HIDDEN)
def test_a_shown_line_that_the_file_lacks_may_have_been_put_there_to_hide_another(
    shown: str,
):
    assert "hidden on purpose" in reason(shown)
    assert "hidden on purpose" in reason(LINES[1], shown, LINES[1])
    assert reason(shown, current=False) == ""


def test_what_was_shown_as_a_whole_hides_nothing():
    assert reason("an older text", FILE) == ""


@pytest.mark.parametrize(
    "shown",
    [
        LONG,
        LONG[:2000] + "... [truncated]",
        LONG[:2000] + "…",
        "     1→" + LONG[:2000] + "... (line truncated to 2000 chars)",
        LONG[:900] + "...[4100 chars omitted]..." + LONG[5000:],
    ],
)
def test_of_a_line_that_is_too_long_a_piece_is_enough(shown):
    assert reason(shown, text=LONG) == ""


@pytest.mark.parametrize("shown", ["{}", '"key1": "value 1"', "[redacted]" * 30, "value"])
def test_a_word_of_a_long_line_is_no_piece_of_it(shown):
    assert reason(shown, text=LONG, current=False) == NOTHING_SHOWN


@pytest.mark.parametrize("mask", ["[hidden]", "****", "[omitted]"])
def test_a_value_that_is_hidden_in_a_long_line_counts(mask):
    assert "hidden on purpose" in reason(LONG.replace("value 7", mask, 1), text=LONG)


def test_what_redact_hides_is_no_difference():
    def redact(text: str) -> str:
        return text.replace("hunter2", "[hidden]")

    views = [ShownText(FILE, True), ShownText(redact(FILE), True)]

    assert reason_to_withhold(views, redact(FILE), redact) == ""


@pytest.mark.parametrize(
    "shown", ["." * 300_000, "[(" * 300_000, "1" * 300_000, "<system-reminder>" * 30_000]
)
def test_a_hostile_view_is_compared_without_delay(shown):
    text = "a line of the file\n" * 15_000

    assert reason(shown, text=text) == NOTHING_SHOWN  # in quadratic time this took minutes


def test_a_view_that_is_far_longer_than_the_file_does_not_count():
    assert reason(FILE + "x\n" * 10**6) == NOTHING_SHOWN
    assert "hidden on purpose" in reason(FILE[:-3], "x\n" * 10**6)
