"""Open the journals that several gateways share, from one URL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import SettingsError
from ..settings import excerpt

if TYPE_CHECKING:
    from ..storage.protocol import TextReader
    from ..storage.records import Redact
    from ..storage.shared_journals import SharedJournal

KINDS = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "postgresql": "PostgreSQL",
    "redis": "Redis",
    "rediss": "Redis",
    "s3": "S3",
    "gs": "Google Cloud Storage",
    "az": "Azure",
}
_OWNER = re.compile(r"[0-9a-f]{16}")
FORMS = "sqlite:///FILE, postgres://HOST/DATABASE, redis://HOST or s3://BUCKET/PREFIX"
_BUCKETS = ("s3", "gs", "az")


def journal_kind(url: str) -> str:
    """Return the name of the database or store at *url*, without its address or password."""
    return KINDS[urlsplit(url).scheme]


def check_journal(url: str) -> None:
    """Raise SettingsError unless *url* has a supported scheme, and names a file or a bucket.

    Nothing is opened.
    """
    parts = urlsplit(url)
    if parts.scheme not in KINDS:
        scheme = excerpt(parts.scheme or "a path")
        raise SettingsError(f"journal begins with {scheme}; give {FORMS}")
    is_file = parts.scheme == "sqlite"
    if is_file and (parts.netloc or len(parts.path) < 2):
        raise SettingsError("journal names no file: sqlite:///FILE, or sqlite:////FOLDER/FILE")
    if parts.scheme in _BUCKETS and not parts.netloc:
        raise SettingsError(f"journal names no bucket: {parts.scheme}://BUCKET/PREFIX")


def is_owner(name: str) -> bool:
    """Return True if *name*, of a folder in a gateway's root, is the digest of a token."""
    return _OWNER.fullmatch(name) is not None


def open_journal(
    url: str, texts: TextReader | None, owner: str = "", redact: Redact | None = None
) -> SharedJournal:
    """Open the journals at *url*; the texts of the sessions are stored in *texts*.

    *owner* is the digest of a gateway's token, "" without tokens. Sessions of different owners are
    stored separately. *redact* hides secrets in everything that is written; with None the redaction
    of *texts* is used, if they have one.

    Raises SettingsError if the kind of *url* is unknown, or if the extra that it needs is missing.
    """
    check_journal(url)
    kind = journal_kind(url)
    if kind == "SQLite":
        from ..storage.sqlite import SQLiteJournal

        path = urlsplit(url).path[1:]
        return SQLiteJournal(f"{path}-{owner}" if owner else path, texts=texts, redact=redact)
    if kind == "PostgreSQL":
        from ..storage.postgres import PostgresJournal

        table = f"ctxpipe_journal_{owner}" if owner else "ctxpipe_journal"
        return PostgresJournal(url, texts=texts, table=table, redact=redact)
    if urlsplit(url).scheme in _BUCKETS:
        return _open_bucket(url, texts, owner, redact)
    from ..storage.redis import RedisJournal

    prefix = f"ctxpipe:{owner}" if owner else "ctxpipe"
    return RedisJournal(url, texts=texts, prefix=prefix, redact=redact)


def _open_bucket(
    url: str, texts: TextReader | None, owner: str, redact: Redact | None
) -> SharedJournal:
    """Return the journals in the bucket at *url*, below *owner* if that is not "".

    The credentials are those of the environment. Raises SettingsError if the URL is invalid or
    obstore is not installed.
    """
    from ..settings import check_extra
    from ..storage.object_journals import ObjectJournal

    check_extra("ObjectJournal", "obstore", "object-store")
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        store = from_url(f"{url.rstrip('/')}/{owner}" if owner else url)
    except (BaseError, ValueError) as error:
        # Without the reason, which may quote a key.
        raise SettingsError(
            f"journal: the bucket cannot be opened ({type(error).__name__}); give "
            "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, and the account and "
            "the region in the environment, as obstore reads them"
        ) from None
    return ObjectJournal(store, texts=texts, redact=redact)
