"""The reasons that scripts/release/resolve_frameworks.py reads from pip, and its table."""

from __future__ import annotations

import re
import runpy

from places import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "release" / "resolve_frameworks.py"))
CONFLICT = """\
ERROR: Cannot install aider-chat==0.86.2 and ctxpipe==0.9.0 because of conflicts.

The conflict is caused by:
    aider-chat 0.86.2 depends on tiktoken==0.12.0
    litellm 1.81.10 depends on tiktoken>=0.7.0
    ctxpipe 0.9.0 depends on tiktoken>=0.13

To fix this you could try to:
"""


def test_a_conflict_is_reported_by_its_first_line_and_the_one_about_ctxpipe():
    assert SCRIPT["conflict_of"](CONFLICT) == (
        "aider-chat 0.86.2 depends on tiktoken==0.12.0; ctxpipe 0.9.0 depends on tiktoken>=0.13"
    )


def test_another_failure_is_reported_by_pips_error():
    output = "Looking\nERROR: No matching distribution found for nothing-such\n"

    assert SCRIPT["conflict_of"](output) == "No matching distribution found for nothing-such"


def test_the_table_of_the_documentation_has_every_framework():
    _, rest = SCRIPT["PAGE"].read_text("utf-8").split(SCRIPT["BEGIN"])
    rows = [line.split("|") for line in rest.split(SCRIPT["END"])[0].splitlines()[3:]]
    names = [name for row in rows for name in re.findall(r"`(.+?)`", row[3])]

    assert sorted(names) == sorted(SCRIPT["FRAMEWORKS"])
    assert len(names) == 20
    assert {row[1].strip() for row in rows} == {"yes"}
