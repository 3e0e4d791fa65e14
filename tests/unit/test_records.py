import gzip
import hashlib
import time
from pathlib import Path

import numpy as np

from evaluator.contract.reports import WindowRecord
from evaluator.exchange.packing import Extremes, KeptTokens, Packing
from evaluator.figure.perplexity import ScoredWindow
from evaluator.figure.records import window_records, write_records, write_tokens
from evaluator.planning.plan import make_plan
from evaluator.planning.windows import Window
from evaluator.text.tokens import TokenDocument


def document(index: int, num_bytes: int) -> TokenDocument:
    return TokenDocument(
        index=index,
        place="",
        ids=np.zeros(1, np.int32),
        num_bytes=num_bytes,
        num_words=1,
        num_replaced=0,
        highest_id=0,
    )


WINDOWS = [
    ScoredWindow(4, 0, 3.5, 9.0, 2),
    ScoredWindow(1, 8, 0.1 + 0.2, 1.0, 3),
    ScoredWindow(1, 0, 2.5, 1.0, 8),
]
DOCUMENTS = {1: document(1, 40), 4: document(4, 7)}


def test_records_are_in_text_order_and_name_the_bytes_of_a_document_once() -> None:
    assert list(window_records(WINDOWS, DOCUMENTS)) == [
        WindowRecord(document=1, begin=0, num_scored=8, nll_nats=2.5, num_bytes=40),
        WindowRecord(document=1, begin=8, num_scored=3, nll_nats=0.1 + 0.2, num_bytes=0),
        WindowRecord(document=4, begin=0, num_scored=2, nll_nats=3.5, num_bytes=7),
    ]


def test_the_file_reads_back_to_the_last_bit_and_its_digest_is_of_the_lines(
    tmp_path: Path,
) -> None:
    records = list(window_records(WINDOWS, DOCUMENTS))
    path = tmp_path / "new" / "windows.jsonl.gz"
    digest = write_records(path, records)
    content = gzip.decompress(path.read_bytes())
    assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert [WindowRecord.model_validate_json(line) for line in content.splitlines()] == records
    assert [p.name for p in path.parent.iterdir()] == ["windows.jsonl.gz"]


def test_neither_time_nor_name_nor_order_changes_the_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    write_records(first, window_records(WINDOWS, DOCUMENTS))
    assert int.from_bytes(first.read_bytes()[4:8], "little") == 0 < time.time()
    write_records(second, window_records(WINDOWS[::-1], DOCUMENTS))
    assert first.read_bytes() == second.read_bytes()


def test_tokens_are_in_text_order_with_their_place(tmp_path: Path) -> None:
    windows = [Window(0, 0, 4, 0, True), Window(0, 3, 6, 4, False), Window(2, 0, 2, 1, False)]
    plan = make_plan(windows, batch_tokens=2, basis=b"")
    scored = [[batch.windows for batch in plan.batches].index((w,)) for w in windows]
    nll = [np.array(row, np.float32) for row in ([1, 2, 3, 4], [5, 6], [7])]
    # Two ranks.
    kept: list[KeptTokens] = [{scored[0]: [nll[0]]}, {scored[2]: [nll[2]], scored[1]: [nll[1]]}]
    path = tmp_path / "tokens.npz"
    packing = Packing.for_all("float16", map(Extremes.of, kept))
    write_tokens(path, plan, [packing.pack_all(part) for part in kept], packing)
    with np.load(path, allow_pickle=False) as file:
        assert file["nll"].dtype == np.float16
        assert file["nll"].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert file["document"].tolist() == [0, 0, 2]
        assert file["begin"].tolist() == [0, 4, 1]
        assert file["num_scored"].tolist() == [4, 2, 1]
        # Inputs before the first scored token, the prefix counted.
        assert file["context"].tolist() == [1, 1, 1]
        assert file["largest_error"] == 0
