"""Find words and their length in every script, also where no blank separates them.

Names and code are mostly written in ASCII, but the words around them are in any language. Chinese,
Japanese, Thai and others put no blank between words, nor between a word and a name:
修改server.py文件 is a word, a file name and a word. Korean adds endings to a name: server.py를.
"""

from __future__ import annotations

import re

_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff"
# Thai, Lao, Tibetan, Burmese, Khmer, and the scripts of their neighbors.
_SOUTHEAST_ASIAN = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf\ua980-\ua9ff\uaa60-\uaa7f"

WITHOUT_BLANKS = f"{_HAN}{_KANA}{_SOUTHEAST_ASIAN}"
"""Characters of the scripts without blanks between words, for a class of a regular expression."""

# Letters of all scripts but the Latin one. Symbols, which no pattern takes for letters, need not be
# left out; arrows and lines of tables are, because they are frequent beside ASCII.
_NOT_LATIN = "\u0370-\u1dff\u1f00-\u1fff\u2c80-\U0003ffff"
_CHANGE_OF_SCRIPT = re.compile(
    f"(?<=[A-Za-z0-9])(?=[{_NOT_LATIN}])|(?<=[{_NOT_LATIN}])(?=[A-Za-z0-9])"
)
_LETTER_NOT_LATIN = re.compile(f"[{_NOT_LATIN}]")

_TWO_LETTERS_LONG = re.compile(f"[{_KANA}{_HANGUL}]")
_THREE_LETTERS_LONG = re.compile(f"[{_HAN}]")
_THREE_SPACED_WORDS = re.compile(r"\b\w++\W++\w++\W++\w")  # quick, and enough for most lines
_LETTER_IN_WORD = f"[^\\W{WITHOUT_BLANKS}]"  # of a script with blanks
_WORD = f"(?:[{_HAN}]{{1,2}}+|[{_KANA}]{{1,3}}+|[{_SOUTHEAST_ASIAN}]{{1,5}}+|{_LETTER_IN_WORD}++)"
# Not from the middle of a word on: searching from each letter of a long one takes quadratic time.
_THREE_WORDS = re.compile(f"(?<!{_LETTER_IN_WORD})(?:{_WORD}[^\\w{WITHOUT_BLANKS}]*+){{3}}")


def separate_scripts(text: str) -> str:
    """Return *text* with a blank between each letter of another script and an ASCII one beside it.

    So a pattern finds a name or a number between words of a script without blanks. The dot of a
    file name and the separator of a path hold them together: docs/说明.md stays as it is.
    """
    if text.isascii() or not _LETTER_NOT_LATIN.search(text):
        return text
    return _CHANGE_OF_SCRIPT.sub(" ", text)


def length_in_latin(text: str) -> int:
    """Return about how many letters *text* would have in a language with the Latin script.

    A Chinese character says about as much as three letters, a Japanese or a Korean one as two.
    """
    if text.isascii():
        return len(text)
    doubled = len(_TWO_LETTERS_LONG.findall(text))
    tripled = len(_THREE_LETTERS_LONG.findall(text))
    return len(text) + doubled + 2 * tripled


def has_three_words(text: str) -> bool:
    """Return True if *text* has three words or more.

    In scripts without blanks that is an estimate: a word has two characters in Chinese, three kana
    in Japanese, and five characters in Thai.
    """
    if _THREE_SPACED_WORDS.search(text):
        return True
    return not text.isascii() and _THREE_WORDS.search(text) is not None
