"""Loading of tiktoken's encodings from files in the package, without network or cache files."""

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
class RankFile:
    """The hashes of a rank file in ``vocab``: of OpenAI's file and of its packed form."""

    official_sha256: str
    packed_sha256: str


RANK_FILES = {
    "cl100k_base": RankFile(
        official_sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        packed_sha256="9ef8402c916638b4e5896df1b798958e6377ae5ee9ecce199388d117f2a44973",
    ),
    "o200k_base": RankFile(
        official_sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        packed_sha256="2f451f31d7403017d0b0dc6319ded23a09f33f573b1635c001fc6b91a1c21302",
    ),
}

_encodings: dict[str, tiktoken.Encoding] = {}
_load_lock = threading.Lock()


def check_name(name: str) -> str:
    """Return *name* if an encoding of that name ships with the package.

    Raises SettingsError, listing the names that exist, otherwise. Pass any other encoding as a
    ``tiktoken.Encoding``.
    """
    if name not in RANK_FILES:
        raise SettingsError(
            f"there is no encoding {name!r} here, only {', '.join(sorted(RANK_FILES))};"
            " pass any other as a tiktoken.Encoding"
        )
    return name


def is_loaded(name: str) -> bool:
    """Return True if the encoding *name* is loaded."""
    return name in _encodings


def load(name: str) -> tiktoken.Encoding:
    """Return the encoding *name*, built once per process.

    The build blocks all threads for about a tenth of a second. Raises VocabularyError if the
    rank file is missing or damaged.
    """
    with _load_lock:
        if name not in _encodings:
            _encodings[name] = _build(name)
        return _encodings[name]


def is_slow_at_runs() -> bool:
    """Return True if the installed tiktoken takes quadratic time for a run of letters or blanks."""
    import tiktoken

    return tiktoken.__version__.startswith("0.12.")


def unpack(packed_ranks: bytes) -> dict[bytes, int]:
    """Return the rank of each token by its bytes.

    The *packed_ranks* have the number of tokens in 4 bytes, one byte with the length of each token,
    and then the bytes of all tokens.
    """
    start = 4 + int.from_bytes(packed_ranks[:4], "big")
    offsets = itertools.accumulate(packed_ranks[4:start], initial=start)
    tokens = [packed_ranks[begin:end] for begin, end in itertools.pairwise(offsets)]
    return dict(zip(tokens, range(len(tokens)), strict=True))


def _build(name: str) -> tiktoken.Encoding:
    """Return tiktoken's encoding *name* with the ranks that ship with ctxpipe.

    Raises VocabularyError if the file is damaged, or tiktoken expects other ranks.
    """
    import tiktoken

    openai_public = importlib.import_module("tiktoken_ext.openai_public")
    ranks = unpack(_read(name))

    def local_ranks(_url: str, expected_hash: str | None = None) -> dict[bytes, int]:
        """Return the ranks that ctxpipe ships; nothing is downloaded.

        Raises VocabularyError if this tiktoken expects other ranks.
        """
        if expected_hash != RANK_FILES[name].official_sha256:
            raise VocabularyError(
                f"tiktoken {tiktoken.__version__} expects other ranks for {name}"
                " than ctxpipe ships; install a ctxpipe made for it"
            )
        return ranks

    # The pattern and the special tokens come from tiktoken: its constructor runs unchanged. Only
    # the function that would download the ranks is replaced, for this one call.
    constructor = getattr(openai_public, name)
    names = {**constructor.__globals__, "load_tiktoken_bpe": local_ranks}
    return tiktoken.Encoding(**types.FunctionType(constructor.__code__, names)())


def _read(name: str) -> bytes:
    """Return the packed ranks of the encoding *name*, after checking their digest.

    Raises VocabularyError if the file cannot be read or is damaged.
    """
    from importlib import resources

    path = resources.files(__package__) / "vocab" / f"{name}.bin"
    try:
        packed_ranks = path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"the rank file {path} cannot be read: {_REPAIR}") from error
    if hashlib.sha256(packed_ranks).hexdigest() != RANK_FILES[name].packed_sha256:
        raise VocabularyError(f"the rank file {path} is damaged: {_REPAIR}")
    return packed_ranks


_REPAIR = (
    "reinstall ctxpipe (pip install --force-reinstall --no-deps ctxpipe);"
    " in a checkout, restore it from version control"
)
