"""Notices of failures: each once, until that works again."""

from __future__ import annotations

from ctxpipe.errors import StorageError
from ctxpipe.journal.notices import BACK, Notices


def fail(notices: Notices, name: str):
    with notices.of_failure("the files cannot be checked", name):
        raise StorageError("no access")


def test_a_failure_is_noticed_once_until_it_works_again():
    notices = Notices("s")

    fail(notices, "files")
    fail(notices, "files")
    [notice] = notices.take()
    assert notice.startswith("the files cannot be checked: StorageError")
    with notices.of_failure("the files cannot be checked", "files"):
        pass
    fail(notices, "files")

    assert len(notices.take()) == 1


def test_failures_of_other_names_are_noticed_each():
    notices = Notices("s")

    fail(notices, "files")
    fail(notices, "lease")

    assert len(notices.take()) == 2


def test_only_a_journal_that_failed_is_noticed_when_it_is_back():
    notices = Notices("s")

    notices.note_success()
    notices.note_failure("the journal cannot be read", StorageError("no access"))
    notices.note_success()
    notices.note_success()

    assert notices.take()[1:] == (BACK,)


def test_notices_that_were_taken_are_gone():
    notices = Notices("s")
    notices.add("something")

    assert (notices.take(), notices.take()) == (("something",), ())
