"""``scripts/sizes.py`` counts methods and lines as its description says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from places import ROOT

from scripts.sizes import class_definitions, line_count, method_names

SOURCE = """\
class Mixin(Generic[T]):
    def mixed(self): ...
    def replaced(self): ...


@dataclass
class Whole(Mixin[int], other.Base, Unknown):
    field: int = 0

    def replaced(self): ...

    @property
    def size(self): ...

    async def run(self):
        def inner(): ...
"""


def test_methods_of_bases_count_and_a_name_counts_once(tmp_path: Path):
    (tmp_path / "module.py").write_text(SOURCE, "utf-8")
    (tmp_path / "other.py").write_text("class Base:\n    def based(self): ...\n", "utf-8")

    definitions = class_definitions(tmp_path)

    names = method_names(definitions["Whole"], definitions)
    assert names == {"mixed", "replaced", "size", "run", "based"}


def test_the_lines_of_a_file_are_counted(tmp_path: Path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE, "utf-8")

    assert line_count(path) == 16


def test_each_package_has_a_line():
    command = [sys.executable, "scripts/sizes.py", "turn", "journal"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    for package, line in zip(("turn", "journal"), ran.stdout.splitlines(), strict=True):
        form = rf"{package}: [A-Z]\w+ has \d+ methods, {package}/\w+\.py has \d+ lines"
        assert re.fullmatch(form, line)
