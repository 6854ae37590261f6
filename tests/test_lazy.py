import importlib
import sys

import pytest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose names are imported on first use."""
    folder = tmp_path / "on_use"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from ctxpipe._lazy import import_on_use\n"
        'RENAMED = {"Ring": "on_use.Circle"}\n'
        'names = {".shapes": "Circle Square", ".colours": "Red"}\n'
        '__getattr__ = import_on_use(__name__, names, {".solids": "Cube Ball"}, RENAMED)\n'
    )
    (folder / "shapes.py").write_text("class Circle: pass\nclass Square: pass\n")
    (folder / "colours.py").write_text("class Red: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("on_use")
    for name in [name for name in sys.modules if name.split(".")[0] == "on_use"]:
        del sys.modules[name]


def test_a_module_is_imported_when_one_of_its_names_is_first_asked_for(package):
    assert "on_use.shapes" not in sys.modules

    circle = package.Circle

    assert circle is sys.modules["on_use.shapes"].Circle
    assert "on_use.colours" not in sys.modules


def test_a_name_is_looked_up_once(package):
    circle = package.Circle

    assert vars(package)["Circle"] is circle


def test_an_unknown_name_is_an_attribute_error_that_names_the_package(package):
    with pytest.raises(AttributeError, match="module 'on_use' has no attribute 'Triangle'"):
        _ = package.Triangle


def test_a_name_that_lives_elsewhere_is_an_import_error_that_says_where(package):
    with pytest.raises(ImportError, match=r"^Ball .*: import it from on_use\.solids$"):
        _ = package.Ball


def test_an_import_of_a_name_that_lives_elsewhere_says_where(package):
    with pytest.raises(ImportError, match=r"^Ball .*: import it from on_use\.solids$"):
        exec("from on_use import Ball", {})  # noqa: S102  a statement, which has a way of its own


def test_a_renamed_name_is_an_import_error_with_the_new_name(package):
    with pytest.raises(ImportError, match=r"^Ring is now on_use\.Circle$"):
        exec("from on_use import Ring", {})  # noqa: S102  a statement, which has a way of its own
