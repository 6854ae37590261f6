"""Choose the sentences in which an assistant says what it has found or decided.

An agent says something before most of its calls: what it has found, and what it does next. The next
call shows the second by itself; the first is in no other text.
"""

from __future__ import annotations

import re

from ..reading.scripts import length_in_latin

MAX_SENTENCES = 2
"""Sentences that stay of the words before a call."""
MAX_SENTENCE_CHARS = 400
MIN_FINDING_LETTERS = 16
"""Letters of the shortest sentence that stays because it names a problem, cause or decision."""
MIN_SENTENCE_LETTERS = 24
"""Letters of the shortest other sentence that may stay."""
_MAX_READ_CHARS = 20_000

_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
# Headings, rows of tables and rules say nothing by themselves.
_NO_SENTENCE = re.compile(r"\s*(?:#{1,6}\s|\||[-=*_]{3,}\s*$)")
_LIST_MARK = re.compile(r"\s*(?:(?:[-*+•>]|\d{1,3}[.)])\s+)*")
# Text up to one of three ends: a mark such as a full stop, a Chinese or Japanese mark, the end of
# the line. Closing quotes belong to the sentence. A full stop counts only before the end of the
# line, or before white space and anything but a small letter; and not in "e.g." and "i.e.".
_SENTENCE = re.compile(
    r"\S.*?(?:(?<!\be\.g)(?<!\bi\.e)[.!?…][\"'”’)\]*_`]{0,3}(?=\s+[^a-z\s]|\s*$)|"
    r"[。！？][\"'”’」』）)]{0,3}|$)"
)
_ANNOUNCEMENT = re.compile(
    r"(?:\W*\b(?:ok(?:ay)?|good|great|perfect|excellent|now|next|then|first|finally|alright|and|so)\b"
    r"){0,3}\W*\b(?:let me|let's|let us|i'll|i will|i'm going to|i am going to|i’ll|let’s|"
    r"now i (?:have|can see|see|understand|know))\b",
    re.IGNORECASE,
)
# Words with which a problem, its cause or a decision is named.
_FINDING = re.compile(
    r"\b(?:issues?|problems?|bugs?|causes?|caused|culprit|reason|decision|decid\w+|conclu\w+|"
    r"confirm\w*|means|turns out)\b",
    re.IGNORECASE,
)
# Words with which a sentence concludes, contrasts or demands.
_CONTRAST = re.compile(
    r"\b(?:so|since|because|therefore|found|must|should|never|however|but|instead|actually|only|"
    r"already|needs?|cannot|not|\w+n['’]t|missing|wrong|fail(?:s|ed|ing)?|broken|correct|works?|fixed|expected|unexpected|requires?|"
    r"clear|likely|maybe|depends?|conflicts?|mismatch|would|better)\b",
    re.IGNORECASE,
)
# Frequent words of English. Words without any of them are of another language, or too few to judge.
# Some of them exist in other languages too; then the stricter rules for English hold.
_ENGLISH = re.compile(r"\b(?:the|is|are|to|of|and|in|that|it|this|has)\b", re.IGNORECASE)


def sentences_to_keep(words: str, start: int = 0) -> list[str]:
    """Return up to `MAX_SENTENCES` sentences of an assistant's *words*, in their order.

    Only sentences that begin at character *start* or later count, without code, headings and
    tables. The first sentences that name a problem, a cause or a decision stay, even if they
    announce the next step. If fewer than `MAX_SENTENCES` do, other sentences may stay too, but none
    that only announces what comes next:

    - English: one, if no sentence names a problem, a cause or a decision. It must contrast, demand
      or conclude something.
    - other languages: as many as are missing, the earliest first.

    A very long sentence is cut.
    """
    words = words[:_MAX_READ_CHARS]
    is_english = _ENGLISH.search(words) is not None
    findings: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    for place, sentence in enumerate(_sentences(words, start)):
        letters = length_in_latin(sentence)
        if letters >= MIN_FINDING_LETTERS and _FINDING.search(sentence):
            findings.append((place, sentence))
        elif letters >= MIN_SENTENCE_LETTERS and _says_something(sentence, is_english=is_english):
            others.append((place, sentence))
    max_others = MAX_SENTENCES
    if is_english:  # a sentence that names a finding makes the others unnecessary
        max_others = 0 if findings else 1
    sentences = [*findings, *others[:max_others]][:MAX_SENTENCES]
    return [_cut(sentence) for _, sentence in sorted(sentences)]


def _says_something(sentence: str, *, is_english: bool) -> bool:
    """Return False if *sentence* only announces the next step, or in English only states a fact."""
    if sentence.endswith((":", "：")) or _ANNOUNCEMENT.match(sentence):
        return False
    return not is_english or _CONTRAST.search(sentence) is not None


def _sentences(words: str, start: int) -> list[str]:
    """Return the sentences of *words* from character *start* on, without marks of lists.

    A sentence ends with its line at the latest.
    """
    # Code becomes as many line breaks as it has characters, so that all offsets stay right.
    plain_words = _CODE.sub(lambda code: "\n" * len(code[0]), words)
    sentences: list[str] = []
    offset = 0
    for line in plain_words.split("\n"):
        if not _NO_SENTENCE.match(line):
            mark = _LIST_MARK.match(line)
            first = mark.end() if mark else 0
            sentences += [
                match[0].strip()
                for match in _SENTENCE.finditer(line, first)
                if offset + match.start() >= start
            ]
        offset += len(line) + 1
    return sentences


def _cut(sentence: str) -> str:
    sentence = " ".join(sentence.split())
    if len(sentence) <= MAX_SENTENCE_CHARS:
        return sentence
    return f"{sentence[:MAX_SENTENCE_CHARS]}…"
