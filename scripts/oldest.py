"""Print the oldest version that pyproject.toml allows of each dependency, as constraints for pip.

python scripts/oldest.py > oldest.txt && pip install --constraint oldest.txt '.[test]'
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[.*?\])?(?:>=(?P<oldest>[\w.]+))?")


def oldest(project: Path = PROJECT) -> list[str]:
    """``name==version`` for every dependency, those of the extras included.

    Our own extras need none.

    Raises ValueError for a dependency without a lower bound.
    """
    declared = tomllib.loads(project.read_text("utf-8"))["project"]
    extras = declared["optional-dependencies"].values()
    found: set[str] = set()
    for line in [*declared["dependencies"], *(line for extra in extras for line in extra)]:
        parts = REQUIREMENT.fullmatch(line)
        if parts is None or (parts["oldest"] is None and parts["name"] != declared["name"]):
            raise ValueError(f"{line!r} has no lower bound")
        if parts["oldest"] is not None:
            found.add(f"{parts['name']}=={parts['oldest']}")
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(oldest()))
