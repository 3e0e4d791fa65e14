"""What is kept beside the figure: what each window contributed, and each token on request."""

import gzip
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from evaluator.contract.reports import WindowRecord
from evaluator.digests import digest_file
from evaluator.exchange.packing import PackedTokens, Packing
from evaluator.figure.perplexity import ScoredWindow
from evaluator.planning.plan import Plan
from evaluator.text.tokens import TokenDocument

COMPRESSION = 6
"""gzip's own choice. 9 saves 2 % of the file and takes four times as long, on rank 0 alone."""


def window_records(
    windows: Iterable[ScoredWindow], documents: dict[int, TokenDocument]
) -> Iterator[WindowRecord]:
    """Records in text order.

    Args:
        windows: All that were scored, in any order.
        documents: That they belong to, by index in the data set.
    """
    before = None
    for window in sorted(windows, key=lambda window: (window.document, window.begin)):
        first = window.document != before
        before = window.document
        yield WindowRecord(
            document=window.document,
            begin=window.begin,
            num_scored=window.num_scored,
            nll_nats=window.nll_nats,
            num_bytes=documents[window.document].num_bytes if first else 0,
        )


def write_records(path: Path, records: Iterable[WindowRecord]) -> str:
    """Write records, one JSON object a line, compressed; the same records give the same bytes.

    Returns:
        Digest of the lines, uncompressed.
    """
    digest = hashlib.sha256()

    def write(file: IO[bytes]) -> None:
        # Neither time nor name of the file may change its bytes.
        with gzip.GzipFile(
            filename="", mode="wb", compresslevel=COMPRESSION, fileobj=file, mtime=0
        ) as lines:
            for record in records:
                line = f"{record.model_dump_json()}\n".encode()
                digest.update(line)
                lines.write(line)

    _write_whole(path, write)
    return f"sha256:{digest.hexdigest()}"


def write_tokens(path: Path, plan: Plan, parts: Sequence[PackedTokens], packing: Packing) -> str:
    """Write the nll of every scored token, in text order.

    Args:
        path: An `.npz` file; docs/metrics.md says what is in it.
        plan: What was scored.
        parts: Of all ranks; together all batches of the plan.
        packing: How an nll is stored.

    Returns:
        Digest of the file.
    """
    by_batch = {index: rows for part in parts for index, rows in part.by_batch.items()}
    rows = sorted(
        (
            (window, nll_S)
            for batch in plan.batches
            for window, nll_S in zip(batch.windows, by_batch[batch.index], strict=True)
        ),
        key=lambda row: (row[0].document, row[0].score_begin),
    )
    arrays = {
        "nll": np.concatenate([nll_S for _, nll_S in rows]),
        "lowest": np.array(packing.lowest),
        "step": np.array(packing.step),
        "largest_error": np.array(max(part.largest_error for part in parts)),
        "document": np.array([window.document for window, _ in rows], np.int64),
        "begin": np.array([window.score_begin for window, _ in rows], np.int64),
        "num_scored": np.array([window.num_scored for window, _ in rows], np.int64),
        "context": np.array([window.first_scored_input + 1 for window, _ in rows], np.int64),
    }
    _write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    return f"sha256:{digest_file(path)}"


def _write_whole(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Have a file written under another name, so that it is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
