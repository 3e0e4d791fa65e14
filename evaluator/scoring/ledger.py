"""The record of batches that are done: what earlier attempts did, and what this rank adds."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from evaluator.contract.places import words_of
from evaluator.contract.reports import FinishedEntry, LedgerEntry
from evaluator.errors import PlanMismatch, ResultInvalid
from evaluator.planning.plan import Plan


class Ledger:
    """Entries by batch. The same batch twice must carry the same numbers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._entries: dict[int, LedgerEntry] = {}
        self._unreported: list[LedgerEntry] = []
        self.added: list[LedgerEntry] = []
        """What this rank has scored."""

    def take_over(self, entries: Iterable[LedgerEntry]) -> None:
        """Add entries that are reported already.

        Raises:
            PlanMismatch: An entry is no batch of the plan.
            ResultInvalid: A batch is there twice with different numbers.
        """
        for entry in entries:
            self._plan.check(entry)
            known = self._entries.setdefault(entry.batch, entry)
            if known != entry:
                msg = f"batch {entry.batch} was scored twice, with different numbers"
                raise ResultInvalid(msg)

    def add(self, entry: LedgerEntry) -> None:
        """Add a batch that this rank has just scored."""
        self.take_over([entry])
        self.added.append(entry)
        self._unreported.append(entry)

    def drop(self, batches: Iterable[int]) -> None:
        """Forget batches whose numbers are not to be trusted."""
        gone = set(batches)
        self._entries = {index: e for index, e in self._entries.items() if index not in gone}
        self.added = [entry for entry in self.added if entry.batch not in gone]

    def take_unreported(self) -> tuple[LedgerEntry, ...]:
        """What was added since the last call."""
        entries = tuple(self._unreported)
        self._unreported.clear()
        return entries

    @property
    def unfinished(self) -> list[int]:
        """Batches without an entry, in the order of the plan."""
        return [batch.index for batch in self._plan.batches if batch.index not in self._entries]

    @property
    def entries(self) -> list[LedgerEntry]:
        """All entries in the order of the plan."""
        return [self._entries[index] for index in sorted(self._entries)]

    def check_complete(self) -> None:
        """Raise unless every batch of the plan is there.

        Raises:
            ResultInvalid: Batches are missing.
        """
        missing = self.unfinished
        if missing:
            msg = f"{len(missing)} of {len(self._plan.batches)} batches are missing: {missing[:5]}"
            raise ResultInvalid(msg)


def read_finished(path: Path, attempt: int) -> list[FinishedEntry]:
    """Entries of earlier attempts, one JSON object a line.

    Args:
        path: Of the file.
        attempt: The current one.

    Raises:
        PlanMismatch: The file is not there, or a line is no entry of an earlier attempt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"the finished batches in {path} can't be read: {error}"
        raise PlanMismatch(msg) from error
    finished = []
    for number, line in enumerate(lines, 1):
        try:
            finished.append(FinishedEntry.model_validate_json(line))
        except ValidationError as error:
            msg = f"line {number} of {path} is no finished batch: {words_of(error.errors()[0])}"
            raise PlanMismatch(msg) from error
        author = finished[-1].author
        if author.attempt >= attempt:
            msg = (
                f"line {number} of {path} is of attempt {author.attempt}, which is no earlier one: "
                f"this is attempt {attempt}; give the spec a higher `attempt`"
            )
            raise PlanMismatch(msg)
    return finished
