"""The path that the model sees: whatever form is accepted leads back to the file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from histories import assistant, conversation, step, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import (
    BatchOffload,
    Collapse,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SettingsError,
    TrimReadBacks,
    offload_tools,
)
from ctxpipe.messages import tool_results
from ctxpipe.placeholders.placeholders import reference
from ctxpipe.storage.memory import MemoryStorage
from ctxpipe.storage.references import check_reference

TEXT = "data " * 500
WORKING = [
    *("absolute", "relative", "storage", "{key}", "{path}", "/mnt/results/{key}", "mnt/{key}"),
    *("./{key}", "../{key}", "C:\\results\\{key}", "C:/results/{key}", "s3://bucket/{key}"),
    *("file://{path}", "sandbox:{path}", "q {path}", "/my files [old]/{key}", "/{{braces}}/{key}"),
    *("/données/漢字/{key}", "/a/../b/{key}", "//{key}", "/x?y=1&z=/{key}"),
]
REFUSED = [
    *("{name}", "/mnt/results/{name}", "q {key}", "C:{key}", "x{key}", "{path}?raw=1", "{path} "),
    *("{key}?raw=1", "{key}/", "{key}.txt", "{key}{key}", "{key}{path}", "{path}/{key}", "{key!r}"),
    *("{key:>80}", "{key:.3}", "{key[0]}", "{key.__class__}", "{0}", "{}", "{", "}"),
    "",
    *("{{key}}", "/mnt/results", "\n{key}", "/a\r/{key}", "/a\0/{key}", "/a\u2028/{key}"),
    *(f"/{'a' * 4_000}/{{key}}", f"/{'{{' * 990}/{{key}}", "Absolute", " storage"),
]


async def leads_back(folder: Path, form: str) -> bool:
    """Whether the model's tool and the session find what a placeholder of the *form* stands for."""
    storage = LocalStorage(folder / "root", reference=form)
    history = conversation(
        user("go"), step("t1", "x", result=TEXT), step("t.2", "x", result=TEXT), assistant("ok")
    )
    history = [*history, user("?"), *step("t3", "x", result=TEXT)]
    stages = (
        DirectOffload(storage),
        BatchOffload(storage, keep_recent=0),
    )
    session = ContextPipeline(stages, on_error="raise").session("Of a / tenant", journal=storage)
    result = await session.run(history)

    placed = [reference(found.content) for found in tool_results(result.messages)]
    [read, *_] = offload_tools(storage, session_id="Of a / tenant")
    texts = [await read({"path": where}) for where in placed]
    again = ContextPipeline(stages).session("Of a / tenant", journal=storage)
    resumed = await again.run(history)
    return (
        texts == [TEXT] * 3
        and resumed.messages == result.messages
        and await session.history() == history == await again.history()
        and (await again.run(list(result.messages))).messages == result.messages
    )


@pytest.mark.parametrize("form", WORKING)
async def test_an_accepted_form_leads_back_to_the_file(form: str, tmp_path):
    assert await leads_back(tmp_path, form)


@pytest.mark.parametrize("form", REFUSED)
def test_a_form_that_leads_nowhere_is_refused_with_one_that_works(form: str, tmp_path):
    with pytest.raises(SettingsError, match=r"/mnt/results/\{key\}"):
        LocalStorage(tmp_path, reference=form)
    storage = MemoryStorage(reference=form)  # checked where it is used, as a user's own is
    for stage in (DirectOffload, TrimReadBacks, BatchOffload, Collapse):
        with pytest.raises(SettingsError, match=r"/mnt/results/\{key\}"):
            stage(storage)
    with pytest.raises(SettingsError, match=r"/mnt/results/\{key\}"):
        Compact(archive=storage)


PIECES = ["{key}", "{path}", "{name}", "{", "}", "{{", "/", "\\", " ", "a", ":", "?", "é"]


@given(st.lists(st.sampled_from(PIECES), max_size=6))
async def test_whatever_form_is_accepted_leads_back(parts: list[str]):
    form = "".join(parts)
    try:
        check_reference(form)
    except SettingsError:
        return
    with tempfile.TemporaryDirectory() as folder:
        assert await leads_back(Path(folder), form)


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\tb", "a\x85b"])
def test_a_root_to_which_no_placeholder_can_point_is_refused(name, tmp_path):
    for stage in (DirectOffload, BatchOffload):
        with pytest.raises(SettingsError, match="line break"):
            stage(LocalStorage(tmp_path / name))
        stage(LocalStorage(tmp_path / name, reference="storage"))
