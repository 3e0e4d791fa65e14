"""Undoes the spaces that a data set was published with. One function and one line for each."""

from collections.abc import Callable

from evaluator.data.document import Document

_BEFORE_BRACKETS = (
    ("s '", "s'"),
    # WikiText marks the signs inside of numbers and words.
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    (" : ", ": "),
    (" ; ", "; "),
    (" . ", ". "),
    (" ! ", "! "),
    (" ? ", "? "),
    (" , ", ", "),
)
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))
_AFTER_BRACKETS = (
    # Headings, the longest first.
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" \u00b0 ", "\u00b0"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


def wikitext(text: str) -> str:
    """Readable text from WikiText's tokens.

    The replacements and their order are those of lm-evaluation-harness's task, so that figures
    agree: also where they go too far, as between two apostrophes.

    Source: docs/data.md lists them.
    """
    for old, new in _BEFORE_BRACKETS:
        text = text.replace(old, new)
    for opening, closing in _PAIRS:
        text = tighten(text, opening, closing)
    for old, new in _AFTER_BRACKETS:
        text = text.replace(old, new)
    return text


def tighten(text: str, opening: str, closing: str) -> str:
    """Strip white space inside of each pair; in one pass, so that long texts take linear time."""
    pieces = []
    end = 0
    while (begin := text.find(opening, end)) >= 0:
        close = text.find(closing, begin + 1)
        if close < 0:
            break
        pieces += [text[end : begin + 1], text[begin + 1 : close].strip(), closing]
        end = close + 1
    return "".join(pieces) + text[end:]


DETOKENISERS: dict[str, Callable[[str], str]] = {"wikitext": wikitext}


def detokenise(document: Document, name: str) -> Document:
    """The document with its spaces undone; bytes and words are still counted on the original."""
    return document._replace(text=DETOKENISERS[name](document.text), original=document.counted)
