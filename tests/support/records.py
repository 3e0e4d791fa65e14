"""Per-window records as rank 0 leaves them in a run directory."""

import gzip
import hashlib
from collections.abc import Sequence
from pathlib import Path

from evaluator.contract.env import WINDOWS_FILE
from evaluator.contract.reports import WindowRecord


def record(document: int, begin: int, num_scored: int, nll: float, num_bytes: int) -> WindowRecord:
    """One line."""
    return WindowRecord(
        document=document, begin=begin, num_scored=num_scored, nll_nats=nll, num_bytes=num_bytes
    )


def content_of(records: Sequence[WindowRecord]) -> bytes:
    """The uncompressed file."""
    return "".join(f"{each.model_dump_json()}\n" for each in records).encode()


def digest_of(records: Sequence[WindowRecord]) -> str:
    """What the result says of it."""
    return f"sha256:{hashlib.sha256(content_of(records)).hexdigest()}"


def write_records(run_dir: Path, records: Sequence[WindowRecord]) -> Path:
    """Write the file."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / WINDOWS_FILE
    path.write_bytes(gzip.compress(content_of(records)))
    return path
