"""The command ``ctxpipe``: its subcommands, their errors, and ``clean``."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from . import __version__
from ._text import count_phrase
from .errors import CtxpipeError, SettingsError
from .gateway import commands as gateway_commands
from .gateway.journals import is_owner, open_journal
from .gateway.options import ENVIRONMENT_PREFIX
from .lab import commands as lab_commands
from .lab.demo import demo
from .lab.survive import survive
from .lab.terminal import discard_output, escape_unencodable_output, print_error, print_line
from .lab.trial import trial
from .placeholders.names import session_folder
from .settings import NUMBER, excerpt
from .storage.atomic import STALE_SECONDS
from .storage.cleanup import (
    Cleaned,
    CleanupLimits,
    OwnFile,
    choose_files,
    delete_files,
    drop_empty_folders,
    find_files,
    has_marks,
    session_files,
)
from .storage.generations import ids_below
from .storage.local import LocalStorage
from .storage.notes import expire_notes
from .storage.ownership import StorageRoot

if TYPE_CHECKING:
    from .storage.shared_journals import SharedJournal

app: typer.Typer = typer.Typer(
    help="Shape the context of an agent, and measure on your own recordings what it costs and what "
    "it forgets.\n\n"
    "A first look: ctxpipe demo. Each command has a --help.\n\n"
    "Exit codes: 0 success, 1 a file failed, 2 wrong arguments, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # which joins the lines of a paragraph
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Exit codes.
FAILED = 1
MISUSED = 2
INTERRUPTED = 130

# Warnings of stages help someone who runs an agent, but not someone who replays a recording.
logging.getLogger("ctxpipe").addHandler(logging.NullHandler())


def _print_version(is_requested: bool) -> None:
    """Print the version and end the command, if *is_requested*. Raises typer.Exit then."""
    if is_requested:
        print_line(f"ctxpipe {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options that belong to no command."""


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """Report a user's error in one sentence, and exit with its code; decorates a command."""
    try:
        yield
    except CtxpipeError as error:
        print_error(str(error))
        raise typer.Exit(MISUSED if isinstance(error, SettingsError) else FAILED) from error
    except KeyboardInterrupt as interrupt:
        print_error("interrupted")
        raise typer.Exit(INTERRUPTED) from interrupt


for _command in (demo, lab_commands.replay, survive, lab_commands.inspect, trial):
    app.command()(_exit_on_error()(_command))
_GATEWAY_SETTINGS = {"auto_envvar_prefix": ENVIRONMENT_PREFIX}
app.command(context_settings=_GATEWAY_SETTINGS)(_exit_on_error()(gateway_commands.gateway))
app.command(context_settings={**_GATEWAY_SETTINGS, "ignore_unknown_options": True})(
    _exit_on_error()(gateway_commands.wrap)
)


@app.command()
@_exit_on_error()
def clean(
    root: Annotated[
        Path,
        typer.Argument(help="The folder of a LocalStorage, such as .ctxpipe.", show_default=False),
    ],
    max_mb: Annotated[
        float | None,
        typer.Option(help="Delete the oldest files until at most this many megabytes are left."),
    ] = None,
    max_days: Annotated[
        float | None, typer.Option(help="Delete what is older than this number of days.")
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Delete archives and journals too.")
    ] = False,
    session: Annotated[
        str | None, typer.Option(help="Delete this session completely, whatever its age.")
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            help="Delete all sessions below this name: cust1/ includes cust1/a, and not cust10."
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            help="Where the journals of these sessions are, if not in the folder: sqlite:///FILE, …"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted; change nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask. Needed where there is no terminal.")
    ] = False,
) -> None:
    """Delete the oldest files that ctxpipe has written; other files are never deleted.

    A session with a journal is left alone if it was used within --max-days, and always without
    --max-days.
    """
    max_bytes = _limit("--max-mb", max_mb, 1_000_000)
    max_age = _limit("--max-days", max_days, 86_400)
    limits = CleanupLimits(max_bytes, max_age, records)
    has_limit = max_mb is not None or max_days is not None
    is_whole = session is not None or prefix is not None
    if is_whole and (has_limit or records):
        raise SettingsError(
            "--session and --prefix delete whole sessions; "
            "leave out --max-mb, --max-days, --records"
        )
    if not (has_limit or is_whole):
        raise SettingsError("nothing to do: give --max-mb, --max-days, --session or --prefix")
    if not root.is_dir():
        raise SettingsError(f"{root} is not a folder")
    folder = StorageRoot(os.path.abspath(root))
    if os.listdir(folder.path) and not has_marks(folder):
        raise SettingsError(
            f"{folder.path} carries no mark of ctxpipe, so nothing in it is deleted"
        )
    if is_whole:
        names = _sessions_to_delete(folder, session, prefix, journal)
        folders = {name: session_folder(name) for name in names}
        files = [file for own in folders.values() for file in session_files(folder, own)]
        with_other_journal = {
            name for name, own in folders.items() if folder.has_journal_elsewhere(own)
        }
        delete = partial(anyio.run, _delete_sessions, folder, names, with_other_journal, journal)
    else:
        files = choose_files(find_files(folder), limits, time.time())
        delete = partial(_delete_files, folder, files, limits)
    size = sum(file.size for file in files)
    if dry_run:
        for file in files:
            print_line(os.path.join(folder.path, file.folder, file.name))
        print_line(f"files that would be deleted: {len(files):,}, bytes: {size:,}")
        return
    if (files or journal) and not yes:
        _ask_to_delete(root, f"{len(files):,} files ({size:,} bytes)")
    result = delete()
    drop_empty_folders(folder, time.time() - STALE_SECONDS)
    folder.sweep_tombstones()
    print_line(f"files deleted: {len(result.files):,}, bytes freed: {result.bytes:,}")
    for path in result.left:
        print_line(f"not deleted: {path if path.isprintable() else ascii(path)}")
    if result.left:
        raise CtxpipeError(f"not deleted: {count_phrase(len(result.left), 'item')}")


def _delete_files(folder: StorageRoot, files: Sequence[OwnFile], limits: CleanupLimits) -> Cleaned:
    """Delete *files*, and the notes that are older than the *limits* allow."""
    result = delete_files(folder, files)
    if limits.max_age is not None:
        expire_notes(folder, time.time() - limits.max_age)
    return result


def _sessions_to_delete(
    folder: StorageRoot, session: str | None, prefix: str | None, journal: str | None
) -> list[str]:
    """Return *session* and the sessions below *prefix* in *folder* and *journal*, sorted.

    With *prefix* their names are printed. *journal* is the URL of a journal.
    """
    names = set() if session is None else {session}
    if prefix is not None:
        names.update(ids_below(prefix, folder.session_ids()))
        if journal is not None:
            names.update(anyio.run(_sessions_in, folder, journal, prefix))
        for name in sorted(names):
            print_line(f"session {excerpt(name)}")
    return sorted(names)


async def _sessions_in(folder: StorageRoot, journal: str, prefix: str) -> list[str]:
    """Return the ids of the sessions in the *journal* at a URL: *prefix* and those below it."""
    async with _open_journal(folder, journal) as storage:
        return await storage.sessions(prefix)


def _open_journal(folder: StorageRoot, url: str) -> SharedJournal:
    """Open the journals at *url*; *folder* may be the one of a gateway for one token."""
    name = os.path.basename(folder.path)
    return open_journal(url, None, name if is_owner(name) else "")


async def _delete_sessions(
    folder: StorageRoot, names: Sequence[str], with_other_journal: set[str], journal: str | None
) -> Cleaned:
    """Delete the sessions *names* below *folder*, and in the *journal* at a URL.

    The journals of the sessions *with_other_journal* are not in the folder. Those that are not at
    the URL either are reported as not deleted.
    """
    remaining = set(with_other_journal)
    where = "here; give --journal"
    if journal is not None:
        # The journal first: a process that still has it would write the texts again.
        where = "there either"
        async with _open_journal(folder, journal) as storage:
            remaining.difference_update(await storage.sessions())
            for name in names:
                await storage.delete(name)
    texts = LocalStorage(folder.path)
    results = [await texts.delete(name) for name in names]
    files: list[str] = []
    not_deleted: list[str] = []
    for result in results:
        files += result.files
        not_deleted += result.left
    for name in sorted(remaining):
        not_deleted.append(f"the journal of {excerpt(name)}, which is not {where}")
    total_bytes = sum(result.bytes for result in results)
    return Cleaned(tuple(files), total_bytes, tuple(not_deleted))


def _ask_to_delete(root: Path, files: str) -> None:
    """Ask at the terminal whether *files* may be deleted; return only after a yes.

    Raises SettingsError without a terminal, typer.Exit after a no.
    """
    if not sys.stdin.isatty():
        raise SettingsError(
            f"{files} would be deleted, and there is no terminal to ask at: add --yes"
        )
    if not typer.confirm(f"Delete {files} below {root}?", err=True):
        print_error("nothing was deleted")
        raise typer.Exit(FAILED)


def _limit(option: str, number: float | None, unit: int) -> float | None:
    """Return *number*, the value of *option*, times *unit*. Raises SettingsError."""
    if number is None:
        return None
    NUMBER.check(option, number)
    return number * unit


def _run_elsewhere() -> None:
    """Do nothing: the command is only listed here, and another module runs it."""


def main(others: Mapping[str, tuple[str, str]]) -> None:
    """Run the command ``ctxpipe``; *others* are listed in its help and run by their modules."""
    for name, (_, says) in others.items():
        app.command(name, help=says)(_run_elsewhere)
    escape_unencodable_output()
    try:
        app(prog_name="ctxpipe")
    except OSError as error:  # errors of transcripts and storages have been handled before
        discard_output()
        name = error.filename or "standard output"
        print_error(f"{name}: {error.strerror or error}")
        raise SystemExit(FAILED) from error
