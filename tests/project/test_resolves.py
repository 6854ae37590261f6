"""What scripts/resolves.py makes of pip's answers, and the table that it has written."""

from __future__ import annotations

import re
import runpy

from places import ROOT

RESOLVES = runpy.run_path(str(ROOT / "scripts" / "resolves.py"))
CONFLICT = """\
ERROR: Cannot install aider-chat==0.86.2 and ctxpipe==0.9.0 because of conflicts.

The conflict is caused by:
    aider-chat 0.86.2 depends on tiktoken==0.12.0
    litellm 1.81.10 depends on tiktoken>=0.7.0
    ctxpipe 0.9.0 depends on tiktoken>=0.13

To fix this you could try to:
"""


def test_of_a_conflict_the_first_line_and_that_of_ctxpipe_are_told():
    assert RESOLVES["reason"](CONFLICT) == (
        "aider-chat 0.86.2 depends on tiktoken==0.12.0; ctxpipe 0.9.0 depends on tiktoken>=0.13"
    )


def test_without_a_conflict_the_error_is_told():
    output = "Looking\nERROR: No matching distribution found for nothing-such\n"

    assert RESOLVES["reason"](output) == "No matching distribution found for nothing-such"


def test_the_table_of_the_documentation_has_every_package_that_is_asked_for():
    _, rest = RESOLVES["PAGE"].read_text("utf-8").split(RESOLVES["BEGIN"])
    rows = [line.split("|") for line in rest.split(RESOLVES["END"])[0].splitlines()[3:]]
    names = [name for row in rows for name in re.findall(r"`(.+?)`", row[3])]

    assert sorted(names) == sorted(RESOLVES["BESIDE"])
    assert len(names) == 20
    assert {row[1].strip() for row in rows} == {"yes"}
