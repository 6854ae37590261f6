"""Print the oldest allowed version of each dependency, as constraints for pip.

The versions are the lower bounds in pyproject.toml. `make test-oldest` installs them.

python scripts/release/oldest_versions.py > oldest.txt
python scripts/install.py --constraint oldest.txt
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[.*?\])?(?:>=(?P<oldest>[\w.]+))?(?P<marker> *;.*)?"
)


def oldest_versions(project: Path = PROJECT) -> list[str]:
    """Return ``name==version`` for each dependency, also those of extras and groups.

    The project itself, which appears in its own extra "all", is left out. Raises ValueError if a
    dependency has no lower bound.
    """
    content = tomllib.loads(project.read_text("utf-8"))
    metadata = content["project"]
    requirements = list(metadata["dependencies"])
    optional_lists = [*metadata["optional-dependencies"].values()]
    optional_lists += content["dependency-groups"].values()
    for lines in optional_lists:
        # A group may include another one: that line is a table.
        requirements += [line for line in lines if isinstance(line, str)]
    constraints: set[str] = set()
    for line in requirements:
        parts = REQUIREMENT.fullmatch(line)
        if parts is not None and parts["oldest"] is not None:
            constraints.add(f"{parts['name']}=={parts['oldest']}{parts['marker'] or ''}")
        elif parts is None or parts["name"] != metadata["name"]:
            raise ValueError(f"{line!r} has no lower bound")
    return sorted(constraints)


if __name__ == "__main__":
    print("\n".join(oldest_versions()))
