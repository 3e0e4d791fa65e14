"""A text file that is too large for memory: read in blocks, as often as it is asked for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.contract.data import DataSource, TextData
from evaluator.data.encoding import (
    Decoded,
    Errors,
    decode_utf8,
    existing_file,
    reading,
    refuse_nul,
)

LONG_BYTES = 1 << 26
"""From here on a file is read in blocks."""
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LongDocument:
    """One text, and where it came from; the counterpart of `Document` for large files."""

    path: Path
    place: str
    errors: Errors
    drops_newline: bool = False
    """Leave out one line end at the end of the file."""

    def without_final_newline(self) -> "LongDocument":
        """The same text less one line end at its end."""
        return replace(self, drops_newline=True)

    def blocks(self) -> Iterator[Decoded]:
        """The text in parts.

        Raises:
            DataEncoding: As for a file that is read at once.
        """
        held: Decoded | None = None
        for block in self._decoded():
            if held is not None:
                yield held
            held = block
        if held is not None:
            text = held.text.removesuffix("\n") if self.drops_newline else held.text
            yield held._replace(text=text)

    def _decoded(self) -> Iterator[Decoded]:
        offset, rest = 0, b""
        with reading(self.path), self.path.open("rb") as file:
            while content := file.read(BLOCK_BYTES):
                content = rest + content
                end = len(content) - num_cut_bytes(content)
                yield self._decode(content[:end], offset)
                offset, rest = offset + end, content[end:]
        if rest:
            yield self._decode(rest, offset)

    def _decode(self, content: bytes, offset: int) -> Decoded:
        decoded = decode_utf8(content, self.place, errors=self.errors, offset=offset)
        refuse_nul(content, self.place, offset=offset)
        return decoded


def num_cut_bytes(content: bytes) -> int:
    """Bytes at the end that begin a character which is not complete."""
    for back in range(1, min(4, len(content) + 1)):
        byte = content[-back]
        if byte & 0xC0 != 0x80:
            length = 2 if 0xC2 <= byte <= 0xDF else 3 if byte & 0xF0 == 0xE0 else 4
            return back if byte >= 0xC2 and byte <= 0xF4 and back < length else 0
    return 0


def long_document(source: DataSource) -> LongDocument | None:
    """The document of a large text file; None for every other source, which is read at once."""
    if not isinstance(source, TextData) or source.detokenise is not None:
        return None
    path = existing_file(source.path)
    with reading(path):
        size_bytes = path.stat().st_size
    if size_bytes < LONG_BYTES:
        return None
    return LongDocument(path=path, place=source.path, errors=source.errors)
