"""SHA-256 of files, and of folders of weights."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

TEXTS_START = b"assay-data-1\0"
IDS_START = b"assay-ids-1\0"
"""What the digests of texts and of ids begin with, so that none is a digest of something else."""


def digest_file(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_files(paths: Iterable[Path]) -> str:
    """Digest of several files: their names and contents, whatever folder they are in."""
    digest = hashlib.sha256(b"assay-files-1\0")
    for path in sorted(paths, key=lambda path: path.name):
        digest.update(f"{path.name}\0{digest_file(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"
