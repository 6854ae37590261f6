"""The README's first program, as it is and with a key."""

from __future__ import annotations

import re

from places import ROOT

README = (ROOT / "README.md").read_text("utf-8")
FIRST_PROGRAM: str = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[0]


def program_with_key() -> str:
    """The first program with its last line changed as the comment on that line says."""
    [line] = [line for line in FIRST_PROGRAM.splitlines() if "# with a key: " in line]
    call, _, instead = line.partition("  # with a key: ")
    assert call == "asyncio.run(without_a_key())"
    return FIRST_PROGRAM.replace(line, f"asyncio.run({instead})")
