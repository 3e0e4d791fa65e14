"""Tokens as small numbers: how far off, and whether it is noticed when they are further off."""

from typing import Any

import numpy as np
import pytest

from evaluator.contract.reports import LedgerEntry
from evaluator.errors import ResultInvalid
from evaluator.exchange.packing import (
    Extremes,
    KeptTokens,
    PackedTokens,
    Packing,
    check_packed,
    packed_traffic,
)

RANDOM = np.random.default_rng(0)
RANKS: list[KeptTokens] = [
    {
        batch: [RANDOM.uniform(0, 20, size).astype(np.float32) for size in (40, 3)]
        for batch in range(begin, 6, 2)
    }
    for begin in (0, 1)
]


def entries(ranks: list[KeptTokens]) -> dict[int, LedgerEntry]:
    return {
        batch: LedgerEntry(
            batch=batch,
            nll_nats=tuple(float(nll_S.astype(np.float64).sum()) for nll_S in rows),
            nll_squares=(0.0,) * len(rows),
            num_scored=tuple(len(nll_S) for nll_S in rows),
            nll_by_context=(),
        )
        for kept in ranks
        for batch, rows in kept.items()
    }


def packed(kind: Any, ranks: list[KeptTokens]) -> tuple[Packing, list[PackedTokens]]:
    packing = Packing.for_all(kind, map(Extremes.of, ranks))
    return packing, [packing.pack_all(kept) for kept in ranks]


@pytest.mark.parametrize(("kind", "bound"), [("float16", 20 / 2048), ("uint8", 20 / 255 / 2)])
def test_the_largest_error_is_told_and_small(kind: Any, bound: float) -> None:
    packing, parts = packed(kind, RANKS)
    errors = [
        np.abs(packing.unpack(packed_S) - nll_S)
        for kept, part in zip(RANKS, parts, strict=True)
        for batch, rows in kept.items()
        for nll_S, packed_S in zip(rows, part.by_batch[batch], strict=True)
    ]
    assert max(part.largest_error for part in parts) == max(error.max() for error in errors)
    assert 0 < max(part.largest_error for part in parts) <= bound * (1 + 1e-6)
    for part in parts:
        assert all(p.dtype == kind for rows in part.by_batch.values() for p in rows)
    check_packed(packing, parts, entries(RANKS))
    # Rank 1 sends three batches of 43 tokens.
    traffic = packed_traffic(parts)
    assert traffic.bytes_before == 3 * 43 * 4
    assert traffic.bytes_after == 3 * 43 * (2 if kind == "float16" else 1)


@pytest.mark.parametrize("kind", ["float16", "uint8"])
def test_ranks_pack_as_one_rank_would(kind: Any) -> None:
    whole: KeptTokens = {**RANKS[0], **RANKS[1]}
    alone, (part,) = packed(kind, [whole])
    together, parts = packed(kind, [*RANKS, {}])
    assert together == alone
    for batch, rows in part.by_batch.items():
        other = parts[batch % 2].by_batch[batch]
        assert all(np.array_equal(a, b) for a, b in zip(rows, other, strict=True))


@pytest.mark.parametrize("kind", ["float16", "uint8"])
def test_what_arrives_further_off_than_packing_can_put_it_is_refused(kind: Any) -> None:
    packing, parts = packed(kind, RANKS)
    broken = parts[1].by_batch[3][1]
    broken.view(np.uint8)[-1] ^= 1 << 5
    with pytest.raises(ResultInvalid, match="batch 3 from rank 1"):
        check_packed(packing, parts, entries(RANKS))


def test_extremes_pack_to_numbers() -> None:
    equal, (part,) = packed("uint8", [{0: [np.full(3, 2.5, np.float32)]}])
    assert equal.unpack(part.by_batch[0][0]).tolist() == [2.5] * 3
    ranks: list[KeptTokens] = [{0: [np.array([1e6, 1.0], np.float32)]}]
    packing, (part,) = packed("float16", ranks)
    assert part.by_batch[0][0].tolist() == [65504, 1]
    assert part.largest_error == 1e6 - 65504
    check_packed(packing, [part], entries(ranks))
