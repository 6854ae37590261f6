"""Choose what a compacted context holds besides its summary: pieces, files and evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice

from ..._threads.threads import in_thread, in_thread_if
from ...messages import Message
from ...messages.rules import closes_turn
from ...tokens import TokenCounter
from ..file_folding import fold_files
from ..protocol import Turn
from ..reading.carry_candidates import GOVERNING_KINDS, CarryKind
from ..reading.citations import without_dangling_citations
from ..reading.unanswered import index_after_last_reply
from ..window import holds_context, is_short, raw_limit, was_shortened, window_holds
from .arrangement import with_frame
from .carry import NOTHING_CARRIED, Selection, select
from .evidence import LEAST_REQUEST_CHARS, MAX_REQUEST_CHARS, evidence_block
from .governing import requests_to_repeat
from .omissions import OmissionsFile
from .partition import Replacement
from .restore import RestoredFile, RestoredFiles
from .split_context import SplitContext


async def fold_texts(files: Sequence[RestoredFile], counter: TokenCounter) -> dict[str, str]:
    """Return the reduced text of each of *files*, which exceed the budget, by path."""
    if not files:
        return {}
    texts = await fold_files(None, [(file.path, file.text) for file in files], counter)
    return {file.path: text for file, text in zip(files, texts, strict=True) if text}


@dataclass(frozen=True, slots=True)
class Layout:
    """A context to propose.

    *files* are in it as a whole, *folded_texts* are the reduced texts of others, and the evidence
    may take *evidence_tokens*. *selection* has the pieces of the history that it carries verbatim.
    *carried_tokens* are the raw tokens of all that shares the budget, and *tokens* those of the
    *messages*. *omitted_paths* are the paths that do not fit into the evidence.
    """

    files: Sequence[RestoredFile]
    folded_texts: Mapping[str, str]
    evidence_tokens: int
    selection: Selection = NOTHING_CARRIED
    carried_tokens: int = 0
    messages: list[Message] = field(default_factory=list)
    tokens: int = 0
    omitted_paths: Sequence[str] = ()


async def choose_layout(
    turn: Turn,
    replacements: Sequence[Replacement],
    restored_files: RestoredFiles,
    evidence_tokens: int,
    file: OmissionsFile,
) -> tuple[Replacement, Layout]:
    """Return the first of *replacements* that is smaller and meets the target, and its layout.

    A context carries at most half of the target verbatim: first the pieces of the history, in the
    order of `CarryKind`, then files, then the evidence. Words of the system and definitions of
    tools do not count. If the context still exceeds the target, files and evidence are reduced
    first, then the pieces, the least important first. A short context that is compacted by force
    keeps all pieces, even if it does not become smaller.

    A later replacement cuts the newest message. It is used only if the window does not hold the
    leanest layout of the first one. If nothing fits, the leanest layout of the last replacement is
    returned.
    """
    limits = _Limits(
        before=await turn.raw_tokens() - turn.overhead,
        target=raw_limit(turn, turn.budget.target) - turn.overhead,
        carried_tokens=raw_limit(turn, turn.budget.target // 2),
    )
    first, *others = replacements
    plans: list[Layout] = []
    selection = await _select(turn, first, limits)
    layout = Layout((), {}, 0)
    async for plan in _from_rich_to_lean(restored_files, evidence_tokens, turn.counter):
        plans.append(plan)
        layout = await lay_out(turn, first, replace(plan, selection=selection), file)
        if _fits(layout, limits):
            return first, layout
    # A short context within the target need not become smaller: nothing is left out for that.
    if layout.tokens <= limits.target and await is_short(turn):
        return first, layout
    leaner = await _carry_less(turn, first, layout, limits, file)
    if _meets_target(leaner, limits):
        return first, leaner
    # Above the target, but maybe within the window, with as many pieces as possible.
    layout, is_accepted = await _carry_until_accepted(turn, first, layout, file)
    if is_accepted or await was_shortened(turn):
        return first, layout
    for replacement in others:
        layout = await _leanest_needed(turn, replacement, plans, limits, file)
        if _meets_target(layout, limits):
            return replacement, layout
    return replacements[-1], layout


# Carried pieces are removed in about so many steps, until the window holds the context.
_REMOVAL_STEPS = 8


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of a context in raw tokens, without the overhead.

    A context must have fewer than *before* and at most *target* tokens. It may carry
    *carried_tokens* tokens verbatim.
    """

    before: int
    target: int
    carried_tokens: int


async def _select(turn: Turn, replacement: Replacement, limits: _Limits) -> Selection:
    """Return the pieces of the history that *replacement* carries within *limits*."""
    candidates = replacement.candidates
    framed_pieces = [with_frame(candidate) for candidate in candidates]
    counts = iter(await turn.counter.counts(chain.from_iterable(framed_pieces)))
    sizes = [sum(islice(counts, len(messages))) for messages in framed_pieces]
    is_large = len(candidates) > _MAX_INLINE_CANDIDATES
    return await in_thread_if(
        is_large, select, candidates, sizes, limits.carried_tokens, limits.target
    )


_MAX_INLINE_CANDIDATES = 100  # for more, the choice runs in a worker thread


async def _carry_less(
    turn: Turn, replacement: Replacement, layout: Layout, limits: _Limits, file: OmissionsFile
) -> Layout:
    """Return *layout* with only as many carried pieces as the target allows, maybe none."""
    while not _meets_target(layout, limits):
        excess = layout.tokens - min(limits.target, limits.before - 1)
        fewer_pieces = layout.selection.lighter(max(1, excess))
        if fewer_pieces is None:
            break
        layout = await lay_out(turn, replacement, replace(layout, selection=fewer_pieces), file)
    return layout


async def _carry_until_accepted(
    turn: Turn, replacement: Replacement, layout: Layout, file: OmissionsFile
) -> tuple[Layout, bool]:
    """Return *layout* with fewer carried pieces, and True if the model will accept it.

    Pieces are removed until the model will accept the layout, or none can be removed any more.
    """
    is_accepted = await _will_be_accepted(turn, layout)
    while not is_accepted:
        tokens_to_remove = 1 + layout.selection.used_tokens // _REMOVAL_STEPS
        fewer_pieces = layout.selection.lighter(tokens_to_remove)
        if fewer_pieces is None:
            break
        layout = await lay_out(turn, replacement, replace(layout, selection=fewer_pieces), file)
        is_accepted = await _will_be_accepted(turn, layout)
    return layout, is_accepted


async def _leanest_needed(
    turn: Turn,
    replacement: Replacement,
    plans: Sequence[Layout],
    limits: _Limits,
    file: OmissionsFile,
) -> Layout:
    """Return the first of *plans* that fits; if none does, the last with fewer carried pieces.

    The plans are laid out for *replacement*.
    """
    selection = await _select(turn, replacement, limits)
    layout = plans[-1]
    for plan in plans:
        layout = await lay_out(turn, replacement, replace(plan, selection=selection), file)
        if _fits(layout, limits):
            return layout
    return await _carry_less(turn, replacement, layout, limits, file)


def _fits(layout: Layout, limits: _Limits) -> bool:
    """Return True if *layout* meets the target, and the carried content does not exceed its share.

    The share counts only if restored files or evidence take tokens from other carried pieces.
    """
    if _has_rivals(layout) and layout.carried_tokens > limits.carried_tokens:
        return False
    return _meets_target(layout, limits)


def _has_rivals(layout: Layout) -> bool:
    """Return True if files and evidence take tokens from other carried pieces.

    The leanest layout has no files and no evidence. If the request is the only piece, evidence
    takes tokens from no other piece: only the target limits it.
    """
    if layout.files or layout.folded_texts:
        return True
    pieces = [*layout.selection.chosen, *layout.selection.left_out]
    has_pieces = any(piece.kind != CarryKind.REQUEST for piece in pieces)
    return has_pieces and layout.evidence_tokens > 0


def _meets_target(layout: Layout, limits: _Limits) -> bool:
    """Return True if *layout* is smaller than the context was, and within the target."""
    return layout.tokens < limits.before and layout.tokens <= limits.target


async def _will_be_accepted(turn: Turn, layout: Layout) -> bool:
    """Return True if the model will accept *layout*, which may be above the target.

    A turn is forced because the model refused the context, so that context counts as filling the
    window, independent of its estimate. But if it is far too short to have been refused for its
    length, its end in the user's words is kept.
    """
    raw = layout.tokens + turn.overhead
    if not turn.force:
        return window_holds(turn, raw)
    if await is_short(turn):
        unanswered = turn.messages[index_after_last_reply(turn.messages) :]
        if any(closes_turn(message) for message in unanswered):
            return True
    return raw < await turn.raw_tokens() and await holds_context(turn, raw)


async def can_keep(turn: Turn, context: SplitContext, start: int) -> bool:
    """Return True if the end of *context* may follow a summary unchanged within the target.

    The end are the messages of its rest from *start* on.
    """
    raw = turn.overhead + await turn.counter.count([*context.head, *context.rest[start:]])
    return not turn.protected and turn.ledger.estimate(raw) <= turn.budget.target


async def _from_rich_to_lean(
    restored_files: RestoredFiles, evidence_tokens: int, counter: TokenCounter
) -> AsyncIterator[Layout]:
    """Yield layouts with less and less: fewer restored files, then less evidence.

    The file that was read longest ago is left out first.
    """
    folded_texts = await fold_texts(restored_files.unfit, counter)
    for number in range(len(restored_files.files), -1, -1):
        files = restored_files.files[:number]
        if number == len(restored_files.files) - 1:
            folded_texts = await fold_texts([*restored_files.files, *restored_files.unfit], counter)
        whole = {file.path for file in files}
        others = {path: text for path, text in folded_texts.items() if path not in whole}
        yield Layout(files, others, evidence_tokens)
    for tokens in (evidence_tokens, evidence_tokens // 4, 0):
        yield Layout((), {}, tokens)


async def lay_out(
    turn: Turn, replacement: Replacement, layout: Layout, file: OmissionsFile
) -> Layout:
    """Return *layout* with the messages of the new context, and their tokens.

    Citations of content that left are removed from the messages.
    """
    evidence = replacement.evidence
    selection = layout.selection
    requests = await in_thread(
        requests_to_repeat,
        evidence.requests,
        selection.chosen,
        selection.left_out,
        evidence.redact,
    )
    evidence = replace(
        evidence,
        notes=[*evidence.notes, *file.note(layout.selection)],
        requests=requests,
        needs_first_request=requests[:1] == evidence.requests[:1],
        needs_last_request=evidence.needs_last_request and requests[-1:] == evidence.requests[-1:],
    )
    # What the carried content leaves out, the evidence must not bring back at the cost of the rest.
    is_whole = not layout.selection.left_out and not layout.selection.cuts
    is_scarce = layout.evidence_tokens == 0 and not is_whole
    max_request_chars = LEAST_REQUEST_CHARS if is_scarce else MAX_REQUEST_CHARS
    block, omitted_paths = await in_thread(
        partial(evidence_block, max_request_chars=max_request_chars),
        evidence,
        layout.evidence_tokens,
        turn.counter.text,
    )
    files = [file.message for file in layout.files]
    folded_texts = list(layout.folded_texts.values())
    messages = await in_thread(
        replacement.messages, block, files, folded_texts, layout.selection.chosen
    )
    messages = await in_thread(without_dangling_citations, turn.messages, messages)
    carried_tokens = sum(await turn.counter.texts([block, *folded_texts]))
    carried_tokens += layout.selection.budget_tokens + sum(file.tokens for file in layout.files)
    return replace(
        layout,
        messages=messages,
        tokens=await turn.counter.count(messages),
        carried_tokens=carried_tokens,
        omitted_paths=omitted_paths,
    )


async def token_breakdown(turn: Turn, replacement: Replacement, layout: Layout) -> str:
    """Return the parts of the context with their raw tokens, the largest first, on one line.

    Empty parts are left out.
    """
    count = turn.counter.count
    summary = layout.messages[len(replacement.head)]
    closing = list(replacement.tail)
    systems: list[Message] = []
    tools: list[Message] = []
    pinned_messages: list[Message] = []
    other: list[Message] = []
    governing: list[Message] = []
    for candidate in layout.selection.chosen:
        match candidate.kind:
            case CarryKind.SYSTEM | CarryKind.INSTRUCTION:
                systems += candidate.messages
            case CarryKind.TOOLS:
                tools += with_frame(candidate)
            case CarryKind.PIN:
                pinned_messages += with_frame(candidate)
            case CarryKind.REQUEST | CarryKind.ATTACHMENT:
                closing += candidate.messages
            case CarryKind.BLOCK:
                other += with_frame(candidate)
            case kind if kind in GOVERNING_KINDS:
                governing += with_frame(candidate)
    parts = {
        "system prompt and tools": turn.overhead,
        "system messages": await count([*replacement.head, *systems]),
        "loaded tools": await count(tools),
        "summary and evidence": await count([summary]),
        "restored files": await count(file.message for file in layout.files),
        "pinned messages": await count(pinned_messages),
        "plan, skills, words, errors and jobs": await count(governing),
        "unknown blocks and references": await count(other),
        "the request at the end": await count(closing),
    }
    largest = Counter(parts).most_common()
    return ", ".join(f"{name} {tokens}" for name, tokens in largest if tokens)
