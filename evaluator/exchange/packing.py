"""The nll of tokens as 16 or 8 bit numbers: each rank packs its own, with steps that all agree on.

So what travels is what the file has, and the file is the same whoever scored what. Sums never
travel like this: they are exact.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.contract.reports import LedgerEntry, PackedTraffic
from evaluator.errors import ResultInvalid

NUM_STEPS = 255
"""Between the 256 values of a byte."""
FLOAT16 = np.finfo(np.float16)

KeptTokens = dict[int, list[NDArray[np.float32]]]
"""The nll of the scored tokens by batch, a row for each window of the plan's batch."""


class Extremes(NamedTuple):
    """Least and greatest nll; infinite the wrong way round where there is none."""

    lowest: float
    highest: float

    @classmethod
    def of(cls, kept: KeptTokens) -> "Extremes":
        """Of one rank's tokens."""
        flat = [nll_S for rows in kept.values() for nll_S in rows]
        return cls(
            min((float(nll_S.min()) for nll_S in flat), default=np.inf),
            max((float(nll_S.max()) for nll_S in flat), default=-np.inf),
        )


class PackedTokens(NamedTuple):
    """One rank's tokens on their way."""

    by_batch: dict[int, list[NDArray[Any]]]
    largest_error: float
    """Nats; 0 without tokens."""


class Packing(NamedTuple):
    """How an nll is stored: as `lowest + step * number`."""

    kind: Literal["float16", "uint8"]
    lowest: float
    step: float

    @classmethod
    def for_all(cls, kind: Literal["float16", "uint8"], ranks: Iterable[Extremes]) -> "Packing":
        """The packing that fits the tokens of all ranks, of which there is at least one."""
        if kind == "float16":
            return cls(kind, 0.0, 1.0)
        lows, highs = zip(*ranks, strict=True)
        lowest = min(lows)
        # Equal values need no step, but a step of zero divides.
        return cls(kind, lowest, (max(highs) - lowest) / NUM_STEPS or 1.0)

    def pack(self, nll: NDArray[np.float32]) -> NDArray[Any]:
        """Numbers of the packed type."""
        if self.kind == "float16":
            return np.minimum(nll, FLOAT16.max).astype(np.float16)
        return np.rint((nll.astype(np.float64) - self.lowest) / self.step).astype(np.uint8)

    def unpack(self, packed: NDArray[Any]) -> NDArray[np.float64]:
        """The nll in nats that the numbers stand for."""
        return self.lowest + self.step * packed.astype(np.float64)

    def bound(self, packed: NDArray[Any]) -> NDArray[np.float64]:
        """Nats that each nll may be off; infinite where a 16 bit number stands for all above it."""
        if self.kind == "uint8":
            return np.full(packed.shape, self.step / 2)
        values = packed.astype(np.float64)
        # 11 significant bits, down to steps of 2^-24.
        rounding = np.maximum(values * 2**-11, 2**-25)
        return np.where(packed == FLOAT16.max, np.inf, rounding)

    def pack_all(self, kept: KeptTokens) -> PackedTokens:
        """All tokens of one rank."""
        by_batch = {index: [self.pack(nll_S) for nll_S in rows] for index, rows in kept.items()}
        errors = [
            float(np.abs(self.unpack(packed_S) - nll_S).max())
            for index, rows in kept.items()
            for packed_S, nll_S in zip(by_batch[index], rows, strict=True)
        ]
        return PackedTokens(by_batch, max(errors, default=0.0))


def packed_traffic(parts: Sequence[PackedTokens]) -> PackedTraffic:
    """What packing has saved on the way to rank 0, by rank."""
    sent = [packed_S for part in parts[1:] for rows in part.by_batch.values() for packed_S in rows]
    return PackedTraffic(
        bytes_before=sum(4 * packed_S.size for packed_S in sent),
        bytes_after=sum(packed_S.nbytes for packed_S in sent),
        largest_error_nats=max(part.largest_error for part in parts),
    )


def check_packed(
    packing: Packing, parts: Sequence[PackedTokens], entries: Mapping[int, LedgerEntry]
) -> None:
    """Compare what has arrived with the exact sums in the ledger.

    Raises:
        ResultInvalid: A window's tokens are further from its nll than packing can put them.
    """
    for rank, part in enumerate(parts):
        for index, rows in part.by_batch.items():
            for nll_nats, packed_S in zip(entries[index].nll_nats, rows, strict=True):
                # float32, before it was packed, takes 2^-24 of each value.
                bound = packing.bound(packed_S).sum() + abs(nll_nats) * 2**-23
                found = packing.unpack(packed_S).sum()
                if not abs(found - nll_nats) <= bound * (1 + 1e-9):
                    msg = (
                        f"tokens of batch {index} from rank {rank} add up to {found:.6g} nats, but "
                        f"the ledger has {nll_nats:.6g}: they are off by more than {bound:.2g}"
                    )
                    raise ResultInvalid(msg)
