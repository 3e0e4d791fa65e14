"""Bytes to text. Nothing is replaced or guessed: what is no UTF-8 is refused with its place."""

from pathlib import Path

from evaluator.errors import DataEncoding, DataNotFound

_SIGNATURES = (
    (b"\x1f\x8b", "it is gzip, decompress it first"),
    (b"\xff\xfe", "it is UTF-16, convert it to UTF-8"),
    (b"\xfe\xff", "it is UTF-16, convert it to UTF-8"),
    (b"PK\x03\x04", "it is a zip archive, unpack it first"),
    (b"\x28\xb5\x2f\xfd", "it is zstd, decompress it first"),
)


def decode_utf8(content: bytes, path: Path, offset: int = 0) -> str:
    """Decode strictly.

    Args:
        content: Bytes of the file.
        path: Of the file, for the message.
        offset: Where `content` begins in the file.

    Raises:
        DataEncoding: It names file and byte offset.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        remedy = "convert the file to UTF-8"
        if offset == 0:
            remedy = next(
                (hint for magic, hint in _SIGNATURES if content[:4].startswith(magic)), remedy
            )
        byte = f"byte {offset + error.start} (0x{content[error.start]:02x})"
        msg = f"{path}: {byte} is no UTF-8; {remedy}"
        raise DataEncoding(msg) from error


def refuse_nul(content: bytes, path: Path) -> None:
    """Raise where a text file has a NUL byte: UTF-16 without a mark, or no text at all.

    Raises:
        DataEncoding: It names the byte offset.
    """
    offset = content.find(b"\0")
    if offset >= 0:
        msg = f"{path}: byte {offset} is NUL, so this is UTF-16 or no text; convert it to UTF-8"
        raise DataEncoding(msg)


def existing_file(path_text: str) -> Path:
    """The path where it is a file.

    Raises:
        DataNotFound: It is not there, or is no file.
    """
    path = Path(path_text)
    if not path.exists():
        msg = f"there is no file {path}"
        raise DataNotFound(msg)
    if not path.is_file():
        msg = f"{path} is no file"
        raise DataNotFound(msg)
    return path
