"""The pipelines of a gateway: one for each size of window, and not ever more of them."""

from __future__ import annotations

import gc
import weakref

import pytest

from ctxpipe import MemoryStorage, SettingsError
from ctxpipe.gateway import pipelines
from ctxpipe.gateway.pipelines import MAX_PIPELINES, Pipelines


def test_models_with_the_same_window_share_a_pipeline():
    made = Pipelines("chat", MemoryStorage())
    made.learn_window("small", "", 32_000)
    made.learn_window("other", "", 32_000)

    assert made.of("small", "") is made.of("other", "")
    assert made.of("small", "") is not made.of("unknown", "")


def test_the_smallest_window_that_was_named_counts():
    made = Pipelines("chat", MemoryStorage())
    for window in (32_000, 16_000, 64_000):
        made.learn_window("m", "", window)

    assert made.of("m", "").budget.window == 16_000


def test_however_many_windows_are_named_few_pipelines_are_kept():
    made = Pipelines("chat", MemoryStorage())
    seen = []
    for number in range(3 * MAX_PIPELINES):
        made.learn_window(f"model {number}", "", 10_000 + number)
        seen.append(weakref.ref(made.of(f"model {number}", "")))
    gc.collect()

    assert sum(pipeline() is not None for pipeline in seen) <= MAX_PIPELINES
    assert made.of(f"model {number}", "") is seen[-1]()


def test_a_window_that_was_forgotten_is_learned_again(monkeypatch):
    monkeypatch.setattr(pipelines, "MAX_WINDOWS", 4)
    made = Pipelines("chat", MemoryStorage())
    for number in range(9):
        made.learn_window(f"model {number}", "", 16_000)
    assert made.of("model 0", "").budget.window != 16_000

    made.learn_window("model 0", "", 16_000)
    assert made.of("model 0", "").budget.window == 16_000


def test_a_pipeline_of_a_file_has_its_own_pins(tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text('[[stage]]\nuse = "Compact"\n')

    with pytest.raises(SettingsError, match=r"write it in .*pipeline\.toml"):
        Pipelines(str(file), MemoryStorage(), pin=["RULE"])
