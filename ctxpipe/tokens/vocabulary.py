"""tiktoken's encodings from rank files in the package: no network, no registry, no file written."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import threading
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import SettingsError, VocabularyError

if TYPE_CHECKING:
    import tiktoken


@dataclass(frozen=True, slots=True)
class Shipped:
    """A rank file in ``vocab``: the hashes of OpenAI's file and of its packed form."""

    official_sha256: str
    packed_sha256: str


SHIPPED = {
    "cl100k_base": Shipped(
        official_sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        packed_sha256="9ef8402c916638b4e5896df1b798958e6377ae5ee9ecce199388d117f2a44973",
    ),
    "o200k_base": Shipped(
        official_sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        packed_sha256="2f451f31d7403017d0b0dc6319ded23a09f33f573b1635c001fc6b91a1c21302",
    ),
}

_loaded: dict[str, tiktoken.Encoding] = {}
_loading = threading.Lock()


def check_name(name: str) -> str:
    """*name*, if an encoding of that name ships with the package.

    Raises SettingsError listing those that exist. Any other encoding is given as a
    ``tiktoken.Encoding``.
    """
    if name not in SHIPPED:
        raise SettingsError(
            f"there is no encoding {name!r} here, only {', '.join(sorted(SHIPPED))};"
            " pass any other as a tiktoken.Encoding"
        )
    return name


def is_loaded(name: str) -> bool:
    """Whether `load` has nothing left to do."""
    return name in _loaded


def load(name: str) -> tiktoken.Encoding:
    """The encoding *name*, built once per process.

    The build holds the interpreter for about a tenth of a second. Raises VocabularyError when the
    rank file is missing or damaged.
    """
    with _loading:
        if name not in _loaded:
            _loaded[name] = _build(name)
        return _loaded[name]


def is_slow_at_runs() -> bool:
    """Whether the installed tiktoken takes quadratic time for a run of letters, or of blanks."""
    import tiktoken

    return tiktoken.__version__.startswith("0.12.")


def unpack(packed: bytes) -> dict[bytes, int]:
    """The rank of each token, by its bytes.

    The *packed* form is a count (4 bytes), one length byte per token, then all tokens.
    """
    start = 4 + int.from_bytes(packed[:4], "big")
    offsets = itertools.accumulate(packed[4:start], initial=start)
    tokens = [packed[begin:end] for begin, end in itertools.pairwise(offsets)]
    return dict(zip(tokens, range(len(tokens)), strict=True))


def _build(name: str) -> tiktoken.Encoding:
    import tiktoken

    openai_public = importlib.import_module("tiktoken_ext.openai_public")
    ranks = unpack(_read(name))

    def local_ranks(_url: str, expected_hash: str | None = None) -> dict[bytes, int]:
        if expected_hash != SHIPPED[name].official_sha256:
            raise VocabularyError(
                f"tiktoken {tiktoken.__version__} expects other ranks for {name}"
                " than ctxpipe ships; install a ctxpipe made for it"
            )
        return ranks

    # The pattern and the special tokens are tiktoken's own: its constructor runs as it is, and only
    # the function that would download the ranks is ours, for this one call.
    constructor = getattr(openai_public, name)
    names = {**constructor.__globals__, "load_tiktoken_bpe": local_ranks}
    return tiktoken.Encoding(**types.FunctionType(constructor.__code__, names)())


def _read(name: str) -> bytes:
    from importlib import resources

    path = resources.files(__package__) / "vocab" / f"{name}.bin"
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"the rank file {path} cannot be read: {_REPAIR}") from error
    if hashlib.sha256(packed).hexdigest() != SHIPPED[name].packed_sha256:
        raise VocabularyError(f"the rank file {path} is damaged: {_REPAIR}")
    return packed


_REPAIR = (
    "reinstall ctxpipe (pip install --force-reinstall --no-deps ctxpipe);"
    " in a checkout, restore it from version control"
)
