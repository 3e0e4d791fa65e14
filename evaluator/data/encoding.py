"""Bytes to text. Nothing is guessed: what is no UTF-8 is refused, or replaced and counted.

A byte order mark at the start of a file says how the file is encoded and is no text: it is dropped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from evaluator.errors import DataEncoding, DataNotFound

Errors = Literal["strict", "replace"]

_MARK = "\ufeff"
_SIGNATURES = (
    (b"\x1f\x8b", "it is gzip, decompress it first"),
    # Before UTF-16, whose mark this one begins with.
    (b"\xff\xfe\0\0", "it is UTF-32, convert it to UTF-8"),
    (b"\0\0\xfe\xff", "it is UTF-32, convert it to UTF-8"),
    (b"\xff\xfe", "it is UTF-16, convert it to UTF-8"),
    (b"\xfe\xff", "it is UTF-16, convert it to UTF-8"),
    (b"PK\x03\x04", "it is a zip archive, unpack it first"),
    (b"\x28\xb5\x2f\xfd", "it is zstd, decompress it first"),
    (b"BZh", "it is bzip2, decompress it first"),
    (b"\xfd7zXZ\0", "it is xz, decompress it first"),
    (b"7z\xbc\xaf\x27\x1c", "it is a 7-Zip archive, unpack it first"),
    (b"%PDF-", "it is PDF, extract its text first"),
)


class Decoded(NamedTuple):
    """Text, and how much of it is not what the file holds."""

    text: str
    num_replaced: int


class Line(NamedTuple):
    """A line of a file with its end."""

    number: int
    """From 1."""
    offset: int
    """Of its first byte in the file."""
    text: str
    num_replaced: int


def decode_utf8(
    content: bytes, place: str, *, errors: Errors = "strict", offset: int = 0
) -> Decoded:
    """Decode bytes of a file.

    Args:
        content: Bytes of the file.
        place: Which file, for the message.
        errors: `replace` turns each invalid sequence into U+FFFD.
        offset: Where `content` begins in the file.

    Raises:
        DataEncoding: It names file and byte offset. With `replace` only for a file that is
            evidently no text.
    """
    try:
        decoded = Decoded(content.decode("utf-8"), 0)
    except UnicodeDecodeError as error:
        known = _what_it_is(content) if offset == 0 else None
        if known is None and errors == "replace":
            decoded = replace_invalid(content)
        else:
            remedy = known or "convert the file to UTF-8, or ask for data.errors: replace"
            byte = f"byte {offset + error.start} (0x{content[error.start]:02x})"
            msg = f"{place}: {byte} is no UTF-8; {remedy}"
            raise DataEncoding(msg) from error
    if offset == 0 and decoded.text.startswith(_MARK):
        return decoded._replace(text=decoded.text[1:])
    return decoded


def replace_invalid(content: bytes) -> Decoded:
    """Decode with U+FFFD for each invalid sequence, and count those."""
    text = content.decode("utf-8", "replace")
    # The bytes of a genuine U+FFFD begin with one that ends any broken sequence before it.
    return Decoded(text, text.count("\ufffd") - content.count(b"\xef\xbf\xbd"))


def _what_it_is(content: bytes) -> str | None:
    return next((hint for magic, hint in _SIGNATURES if content.startswith(magic)), None)


def refuse_nul(content: bytes, place: str, *, offset: int = 0) -> None:
    """Raise where a text file has a NUL byte: UTF-16 without a mark, or no text at all.

    Raises:
        DataEncoding: It names the byte offset.
    """
    found = content.find(b"\0")
    if found >= 0:
        byte = f"byte {offset + found}"
        msg = f"{place}: {byte} is NUL, so this is UTF-16 or no text; convert it to UTF-8"
        raise DataEncoding(msg)


def decoded_lines(path: Path, *, errors: Errors) -> Iterator[Line]:
    r"""Lines of a file, ended by \n alone; memory holds one of them.

    Raises:
        DataEncoding: As `decode_utf8` and `refuse_nul` say.
        DataNotFound: The file can't be read.
    """
    offset = 0
    with reading(path), path.open("rb") as file:
        for number, content in enumerate(file, 1):
            text, num_replaced = decode_utf8(content, str(path), errors=errors, offset=offset)
            # No text, and no JSON either.
            refuse_nul(content, str(path), offset=offset)
            yield Line(number, offset, text, num_replaced)
            offset += len(content)


def existing_file(path_text: str) -> Path:
    """The path where it is a file.

    Raises:
        DataNotFound: It is not there, or is no file.
    """
    path = Path(path_text)
    with reading(path):
        if not path.exists():
            msg = f"there is no file {path}"
            raise DataNotFound(msg)
        if not path.is_file():
            msg = f"{path} is no file"
            raise DataNotFound(msg)
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the path where the system refuses to read it.

    Raises:
        DataNotFound: It can't be read; the message has the system's word for why.
    """
    try:
        yield
    except OSError as error:
        msg = f"{path} can't be read: {error.strerror or error}"
        raise DataNotFound(msg) from error
