"""The oldest versions of the dependencies, as `make test-oldest` installs them."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from scripts.release.oldest_versions import oldest_versions


def test_each_dependency_has_one_oldest_version_and_keeps_its_marker():
    lines = {Requirement(line).name: Requirement(line) for line in oldest_versions()}

    assert str(lines["backports.zstd"]) == 'backports.zstd==1.0; python_version < "3.14"'
    assert all(len(line.specifier) == 1 for line in lines.values())


def test_a_dependency_without_a_lower_bound_is_named(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\nname = "a"\ndependencies = ["b"]\n[project.optional-dependencies]\n'
        "[dependency-groups]\n"
    )
    with pytest.raises(ValueError, match="'b' has no lower bound"):
        oldest_versions(project)
