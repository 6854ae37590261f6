"""Print the oldest version that pyproject.toml allows of each dependency, as constraints for pip.

python scripts/oldest.py > oldest.txt && python scripts/install.py --constraint oldest.txt
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[.*?\])?(?:>=(?P<oldest>[\w.]+))?(?P<marker> *;.*)?"
)


def oldest(project: Path = PROJECT) -> list[str]:
    """``name==version`` for every dependency, those of the extras and the groups included.

    Our own extras need none.

    Raises ValueError for a dependency without a lower bound.
    """
    whole = tomllib.loads(project.read_text("utf-8"))
    declared = whole["project"]
    groups = [*declared["optional-dependencies"].values(), *whole["dependency-groups"].values()]
    found: set[str] = set()
    lines = [line for group in groups for line in group if isinstance(line, str)]
    for line in [*declared["dependencies"], *lines]:
        parts = REQUIREMENT.fullmatch(line)
        if parts is None or (parts["oldest"] is None and parts["name"] != declared["name"]):
            raise ValueError(f"{line!r} has no lower bound")
        if parts["oldest"] is not None:
            found.add(f"{parts['name']}=={parts['oldest']}{parts['marker'] or ''}")
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(oldest()))
