"""The reasons why ctxpipe is not first in a row, by the name of the row."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NO_REASON", "REASONS"]

NO_REASON = "no reason is known yet"

_SUMMARY_TURN = (
    "by default ctxpipe waits for the summary, as the others do, and then counts and checks what "
    "it has removed; with Compact(background=True) no turn waits"
)
_FINDINGS = (
    "the stand-in for a model lists names only, and ctxpipe keeps no sentence of the assistant "
    "word for word; the file that its context names has all of them"
)

REASONS: Mapping[str, str] = {
    "a turn as coding agents send it, behind 200 messages": (
        "ctxpipe counts each new result exactly and writes it to a file on disk, so that it sends "
        "a small part of what the faster ones send"
    ),
    "a turn with nothing to do behind 20,000 messages": (
        "ctxpipe compares the history with that of the last turn; the faster one trusts the last "
        "bill and looks at nothing else"
    ),
    "one new result of 100,000 characters leaves": (
        "ctxpipe counts the tokens of the result exactly and checks the new context by the API's "
        "rules; the others estimate tokens by characters"
    ),
    "the old ones of 300 results of 2700 characters leave": (
        "ctxpipe writes 300 files, each completely or not at all, and counts them exactly; the "
        "faster ones keep the texts in memory or nowhere, or write them as they arrive"
    ),
    "810,000 characters compacted, the model's own time taken out": (
        "ctxpipe collects open errors, tasks and files from what it removes, and counts it "
        "exactly; the faster ones estimate tokens, and keep the last messages and a summary"
    ),
    "valid chat completions, broken histories compacted": (
        "an adapter sends the client's messages as they came where no stage changes anything, and "
        "of some of these histories a summary would not be shorter"
    ),
    "the longest turn while a summary is written": _SUMMARY_TURN,
    "what was said, in sight or in a named file after a compaction": (
        "the first one leaves three quarters of the tokens; of ctxpipe's files most are named by "
        "the archive that the context names, and this row counts files that the context names "
        "itself"
    ),
    "findings of the assistant in the context after a compaction, scripted conversations": (
        _FINDINGS
    ),
    "findings of the assistant in the context after a compaction, recorded sessions": _FINDINGS,
}
