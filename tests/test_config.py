from __future__ import annotations

from pathlib import Path

import pytest

from ctxpipe import Compact
from ctxpipe.config import preset_stages, read_config
from ctxpipe.errors import SettingsError
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.collapse.stage import Collapse
from ctxpipe.stages.compact.stage import Breaker, Evidence, Restore
from ctxpipe.stages.offload.gates import RentOrBuyGate
from ctxpipe.stages.offload.stage import BatchOffload, DirectOffload
from ctxpipe.storage import LocalFiles
from ctxpipe.storage.memory import MemoryStorage

WHOLE = """
[budget]
window = 100_000
trigger = 0.5

[[stage]]
use = "DirectOffload"
min_chars = 8000
preview = { head = 400, tail = 200 }

[[stage]]
use = "BatchOffload"
gate = { use = "RentOrBuyGate", alpha = 3.0 }
keep_recent = 7
inputs = ["write_file"]

[[stage]]
use = "Compact"

[[stage]]
use = "SmartTruncate"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "pipeline.toml"
    path.write_text(text, "utf-8")
    return path


def test_every_setting_of_the_file_reaches_its_stage(tmp_path):
    prices, storage = Prices.relative(read=0.05), MemoryStorage()
    config = read_config(written(tmp_path, WHOLE))

    direct, batch, *_ = config.stages(storage, prices=prices)

    assert isinstance(direct, DirectOffload)
    assert isinstance(batch, BatchOffload)
    assert isinstance(batch.gate, RentOrBuyGate)
    assert direct.storage is storage
    assert (direct.min_chars, direct.preview and direct.preview.tail) == (8000, 200)
    assert (batch.gate.alpha, batch.gate.prices, batch.keep_recent) == (3.0, prices, 7)
    assert batch.inputs == {"write_file"}
    assert (config.budget().window, config.budget().trigger) == (100_000, 50_000)


def test_the_parts_of_compaction_are_tables_beside_what_the_caller_lends(tmp_path):
    tables = (
        "restore = { shell = true, max_files = 3 }\n"
        "evidence = { tokens = 500, pin = ['RULE'] }\nbreaker = { cooldown_seconds = 60 }\n"
    )
    config = read_config(written(tmp_path, f"[[stage]]\nuse = 'Compact'\n{tables}"))
    files, clock = LocalFiles(tmp_path), lambda: 0.0

    [compact] = config.stages(MemoryStorage(), files=files, clock=clock)
    [in_folder] = config.stages(MemoryStorage(), work_dir=tmp_path)
    [without_files] = config.stages(MemoryStorage())

    assert isinstance(compact, Compact)
    assert compact.restore == Restore(files=files, shell=True, max_files=3)
    assert compact.evidence == Evidence(tokens=500, pin=["RULE"])
    assert compact.breaker == Breaker(cooldown_seconds=60, clock=clock)
    assert isinstance(in_folder, Compact)
    assert in_folder.restore == Restore(tmp_path, shell=True, max_files=3)
    assert isinstance(without_files, Compact)
    assert without_files.restore is None


def test_a_collapse_is_lent_the_prices_and_the_storage(tmp_path):
    prices, storage = Prices.relative(read=0.05), MemoryStorage()
    text = '[[stage]]\nuse = "Collapse"\nkeep_recent = 10\n'

    [stage] = read_config(written(tmp_path, text)).stages(storage, prices=prices)

    assert isinstance(stage, Collapse)
    assert (stage.keep_recent, stage.prices, stage.storage) == (10, prices, storage)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[stage]\n", " is not valid TOML: "),
        ("", " names no [[stage]]"),
        (
            "\n[[stage]]\nuse = 'Nonsense'\n",
            ": stage 1: use is 'Nonsense'; there are DirectOffload",
        ),
        (
            "[[stage]]\n[[stage]]\nuse = 'Compact'\n",
            ": stage 1: use is None; there are DirectOffload",
        ),
        (
            "[[stage]]\nuse = 'Compact'\n[[stage]]\nuse = 'DirectOffload'\nmin_chars = -1\n",
            ": stage 2: min_chars is -1",
        ),
        (
            "[[stage]]\nuse = 'DirectOffload'\nmin_char = 1\n",
            (": stage 1: min_char is unknown here; the settings are min_chars, preview, per_tool"),
        ),
        (
            "[[stage]]\nuse = 'Compact'\n[[stage]]\nuse = 'DirectOffload'\nstorage = 1\n",
            ": stage 2: storage is unknown",
        ),
        (
            "[[stage]]\nuse = 'DirectOffload'\npreview = 7\n",
            ": stage 1: preview is 7; give a table",
        ),
        (
            "[[stage]]\nuse = 'DirectOffload'\npreview = { heads = 7 }\n",
            ": stage 1: preview: heads is unknown here",
        ),
        (
            "[[stage]]\nuse = 'BatchOffload'\ngate = { use = 'Door' }\n",
            ": stage 1: gate is 'Door'; there are",
        ),
        (
            "[[stage]]\nuse = 'BatchOffload'\ngate = 'RatioGate'\n",
            ": stage 1: gate is 'RatioGate'; give a table",
        ),
        (
            "[[stage]]\nuse = 'BatchOffload'\ninputs = 3\n",
            ": stage 1: inputs is 3; give a set of names",
        ),
        (
            "[[stage]]\nuse = 'BatchOffload'\ngate = { use = [1] }\n",
            ": stage 1: gate is [1]; there are RatioGate",
        ),
        (
            "[[stage]]\nuse = 'BatchOffload'\ngate = { use = 'RentOrBuyGate', alpha = 'x' }\n",
            ": stage 1: gate: alpha is 'x'; give a number",
        ),
        (
            "[[stage]]\nuse = 'SmartTruncate'\nshell = 'yes'\n",
            ": stage 1: shell is 'yes'; give True or False",
        ),
        (
            "[[stage]]\nuse = 'Compact'\nrestore = { max_files = true }\n",
            ": stage 1: restore: max_files is True; give",
        ),
        (
            "[[stage]]\nuse = 'Compact'\nbreaker = { retry = 5 }\n",
            ": stage 1: breaker: retry is unknown here; the settings are cooldown_seconds",
        ),
        (
            "[[stage]]\nuse = 'Compact'\nevidence = { tokens = 'many' }\n",
            ": stage 1: evidence: tokens is 'many'; give a whole number, 0 or more",
        ),
        (
            f"[[stage]]\nuse = 'Compact'\nevidence = {{ tokens = {'9' * 5000} }}\n",
            " is not valid TOML: Exceeds the limit",
        ),
        ("stage = [3]\n", ": stage 1 is 3; give a table"),
        ("budget = 3\n[[stage]]\nuse = 'Compact'\n", ": [budget] is 3; give a table"),
        (
            "[budget]\nwindow = -5\n[[stage]]\nuse = 'Compact'\n",
            ": [budget]: window is -5",
        ),
        (
            "[budgets]\n[[stage]]\nuse = 'Compact'\n",
            ": budgets is unknown here; there are [budget] and [[stage]]",
        ),
    ],
)
def test_nonsense_is_told_with_the_file_and_the_place(tmp_path, text, told):
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_a_file_that_cannot_be_read_is_told_in_one_sentence(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.toml")


def test_a_file_in_another_encoding_is_told_in_one_sentence(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes("# gr\u00fcn".encode("latin-1"))
    with pytest.raises(SettingsError, match="cannot be read"):
        read_config(path)


def test_an_unknown_preset_is_refused_with_the_names_of_the_presets():
    reason = "there is no preset 'lean-memory'; the presets are coding, lean, chat"
    with pytest.raises(SettingsError, match=reason):
        preset_stages("lean-memory", MemoryStorage())
