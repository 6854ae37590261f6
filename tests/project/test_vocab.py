"""The shipped ranks are OpenAI's, and load with no network, no registry and no trace."""

from __future__ import annotations

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import stock
from places import PACKAGE, ROOT

from ctxpipe import CtxpipeError, errors
from ctxpipe.errors import SettingsError
from ctxpipe.tokens import TokenCounter, vocabulary

VOCAB = PACKAGE / "tokens" / "vocab"
NAMES = ["cl100k_base", "o200k_base"]

each_encoding = pytest.mark.parametrize("name", NAMES)

# Whatever would reach for the network dies, and says so.
NO_NETWORK = """
import socket
def refuse(*args, **kwargs): raise AssertionError("the network was asked for")
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
socket.getaddrinfo = refuse
"""


def python(script: str, *folders: Path, cwd: Path, **environment: str) -> str:
    """What *script* prints, run in a process of its own that imports from *folders* first."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "default::DeprecationWarning", "-c", script],
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@each_encoding
def test_the_official_rank_file_is_rebuilt_byte_for_byte(name: str):
    assert (
        hashlib.sha256(stock.official(name)).hexdigest()
        == vocabulary.RANK_FILES[name].official_sha256
    )


@each_encoding
def test_the_build_script_makes_exactly_the_shipped_file_from_the_official_one(name: str):
    pack = runpy.run_path(str(ROOT / "scripts" / "release" / "build_vocab.py"))["pack"]

    assert pack(stock.official(name)) == (VOCAB / f"{name}.bin").read_bytes()


@each_encoding
def test_pattern_special_tokens_and_ranks_are_those_of_the_installed_tiktoken(name: str):
    ours, theirs = vocabulary.load(name), stock.encoding(name)

    assert (ours.name, ours._pat_str, ours._special_tokens) == (
        theirs.name,
        theirs._pat_str,
        theirs._special_tokens,
    )
    assert ours._mergeable_ranks == theirs._mergeable_ranks


@pytest.mark.parametrize(("name", "megabytes"), [("cl100k_base", 0.43), ("o200k_base", 0.99)])
def test_a_rank_file_takes_little_room_in_a_wheel(name, megabytes):
    assert len(zlib.compress((VOCAB / f"{name}.bin").read_bytes())) / 1e6 < megabytes * 1.05


def test_the_licence_of_the_ranks_and_where_they_come_from_lie_beside_them():
    notice = (VOCAB / "LICENSE-tiktoken").read_text()

    assert "Copyright (c) 2022 OpenAI, Shantanu Jain" in notice
    for name, shipped in vocabulary.RANK_FILES.items():
        assert stock.URL.format(name) in notice
        assert shipped.official_sha256 in notice


def test_an_encoding_is_built_once_per_process():
    assert vocabulary.load("cl100k_base") is vocabulary.load("cl100k_base")


def test_an_unknown_name_is_refused_with_those_that_exist():
    with pytest.raises(SettingsError, match=r"'p50k_base'.*cl100k_base, o200k_base"):
        TokenCounter("p50k_base")


def test_importing_loads_neither_tiktoken_nor_ranks(tmp_path):
    script = (
        "import sys, ctxpipe.tokens as t; t.TokenCounter().over('short', 10); print('tiktoken' in "
        "sys.modules)"
    )

    assert python(script, ROOT, cwd=tmp_path) == "False"


def test_counting_and_running_need_no_network_and_leave_no_file(tmp_path):
    script = f"""{NO_NETWORK}
import asyncio
from ctxpipe import ContextPipeline
from ctxpipe.tokens import TokenCounter, count_tokens
history = [{{"role": "user", "content": "hello world"}}]
counts = [TokenCounter(name).text("hello world") for name in ("cl100k_base", "o200k_base")]
result = asyncio.run(ContextPipeline().run(history, session_id="s"))
print(counts, count_tokens(history), len(result.messages))
"""
    said = python(script, ROOT, cwd=tmp_path, HOME=str(tmp_path), TMPDIR=str(tmp_path))

    assert said == "[2, 2] 2 1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "plug_in",
    [
        "ENCODING_CONSTRUCTORS = {'cl100k_base': dict, 'mine': dict}",
        "raise RuntimeError('a plug-in that cannot be imported')",
    ],
)
def test_a_plug_in_of_another_library_does_not_interfere(tmp_path, plug_in):
    (tmp_path / "tiktoken_ext").mkdir()
    (tmp_path / "tiktoken_ext" / "other_library.py").write_text(plug_in)
    script = """
from ctxpipe.tokens import TokenCounter
import tiktoken
try: tiktoken.get_encoding("cl100k_base")
except Exception as error: print(type(error).__name__, end=" ")
print(TokenCounter().text("hello world"), tiktoken.registry.ENCODINGS)
"""

    said = python(script, tmp_path, ROOT, cwd=tmp_path)

    assert said.split()[0] in ("ValueError", "RuntimeError")  # what everybody else meets
    assert said.split()[1:] == ["2", "{}"]


def test_other_users_of_tiktoken_find_its_registry_as_it_was(tmp_path):
    script = """
import tiktoken.registry, tiktoken.load, tiktoken_ext.openai_public as public, os
before = (public.load_tiktoken_bpe, dict(os.environ))
from ctxpipe.tokens import TokenCounter
TokenCounter().text("hello world")
print((public.load_tiktoken_bpe, dict(os.environ)) == before, tiktoken.registry.ENCODINGS)
"""

    assert python(script, ROOT, cwd=tmp_path) == "True {}"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with a copy of the package, to be damaged."""
    shutil.copytree(PACKAGE, tmp_path / "ctxpipe", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


ASK = """
from ctxpipe.tokens import TokenCounter
from ctxpipe.errors import VocabularyError
try: TokenCounter().text("hello world")
except VocabularyError as error: print(error)
"""


def test_a_missing_rank_file_is_one_error_that_names_it_and_the_remedy(installed):
    (installed / "ctxpipe" / "tokens" / "vocab" / "cl100k_base.bin").unlink()

    said = python(ASK, installed, cwd=installed)

    assert str(installed / "ctxpipe" / "tokens" / "vocab" / "cl100k_base.bin") in said
    assert "cannot be read" in said
    assert "pip install --force-reinstall" in said


def test_a_damaged_rank_file_is_one_error_that_names_it_and_the_remedy(installed):
    file = installed / "ctxpipe" / "tokens" / "vocab" / "cl100k_base.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    said = python(ASK, installed, cwd=installed)

    assert f"{file} is damaged" in said
    assert "pip install --force-reinstall" in said


def test_a_tiktoken_with_other_ranks_is_refused_by_name(monkeypatch):
    other = vocabulary.RankFile("0" * 64, vocabulary.RANK_FILES["cl100k_base"].packed_sha256)
    monkeypatch.setitem(vocabulary.RANK_FILES, "cl100k_base", other)

    with pytest.raises(errors.VocabularyError, match="expects other ranks for cl100k_base"):
        vocabulary._build("cl100k_base")


def test_an_error_about_the_ranks_belongs_to_the_family_and_is_an_os_error():
    assert issubclass(errors.VocabularyError, CtxpipeError)
    assert issubclass(errors.VocabularyError, OSError)
