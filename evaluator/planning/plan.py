"""The list of batches that every rank derives alike, and its digest.

A batch is windows of equal input length, so that nothing is padded. Its composition depends on the
text, the tokenizer and the scoring alone: never on the model, the ranks or what is finished.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from evaluator.contract.reports import LedgerEntry, PlanFacts
from evaluator.errors import PlanMismatch
from evaluator.planning.windows import Window


@dataclass(frozen=True)
class Batch:
    """Windows of equal input length that go through the model together."""

    index: int
    windows: tuple[Window, ...]

    @property
    def num_inputs(self) -> int:
        """Inputs of each window."""
        return self.windows[0].num_inputs

    @property
    def num_input_tokens(self) -> int:
        """Tokens fed to the model."""
        return len(self.windows) * self.num_inputs

    @property
    def num_context_buckets(self) -> int:
        """Powers of two up to the input length; `evaluator.scoring.contexts` says what for."""
        return self.windows[0].num_inputs.bit_length()

    @property
    def num_scored(self) -> tuple[int, ...]:
        """Scored tokens per window."""
        return tuple(window.num_scored for window in self.windows)


@dataclass(frozen=True)
class Plan:
    """All batches, the most expensive first."""

    batches: tuple[Batch, ...]
    basis: bytes
    """What the windows were derived from; part of the digest."""

    @cached_property
    def facts(self) -> PlanFacts:
        """Size and digest of the plan."""
        windows = [window for batch in self.batches for window in batch.windows]
        return PlanFacts(
            digest=self._digest(),
            num_documents=len({window.document for window in windows}),
            num_windows=len(windows),
            num_batches=len(self.batches),
            num_input_tokens=sum(window.num_inputs for window in windows),
            num_scored_tokens=sum(window.num_scored for window in windows),
        )

    def _digest(self) -> str:
        digest = hashlib.sha256(b"assay-plan-1\0")
        digest.update(struct.pack("<Q", len(self.basis)) + self.basis)
        for batch in self.batches:
            digest.update(struct.pack("<Q", len(batch.windows)))
            for window in batch.windows:
                digest.update(struct.pack("<QQQQ?", *window))
        return f"sha256:{digest.hexdigest()}"

    def check(self, entry: LedgerEntry) -> None:
        """Raise unless the entry is the work of one of this plan's batches.

        Raises:
            PlanMismatch: There is no such batch, or it has other windows.
        """
        if entry.batch >= len(self.batches):
            msg = f"batch {entry.batch} is finished, but the plan has {len(self.batches)} batches"
            raise PlanMismatch(msg)
        expected = self.batches[entry.batch].num_scored
        if entry.num_scored != expected:
            msg = (
                f"batch {entry.batch} was scored with {entry.num_scored} tokens per window, "
                f"but the plan has {expected}"
            )
            raise PlanMismatch(msg)
        num_buckets = self.batches[entry.batch].num_context_buckets
        if len(entry.nll_by_context) != num_buckets:
            msg = (
                f"batch {entry.batch} has its nll by {len(entry.nll_by_context)} buckets of the "
                f"context, but the plan has {num_buckets}"
            )
            raise PlanMismatch(msg)


def make_plan(windows: Sequence[Window], *, batch_tokens: int, basis: bytes) -> Plan:
    """Group windows into batches, longest inputs first.

    Args:
        windows: Of all documents.
        batch_tokens: Most input tokens of a batch; a batch has at least one window all the same.
        basis: Canonical description of data, tokenizer and scoring.
    """
    batches: list[Batch] = []
    group: list[Window] = []
    for window in sorted(windows, key=lambda window: (-window.num_inputs, window)):
        full = group and (len(group) + 1) * window.num_inputs > batch_tokens
        if full or (group and group[0].num_inputs != window.num_inputs):
            batches.append(Batch(len(batches), tuple(group)))
            group = []
        group.append(window)
    if group:
        batches.append(Batch(len(batches), tuple(group)))
    return Plan(tuple(batches), basis)
