"""Ranks as threads: the audit as it runs, without processes and models."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import pytest

from evaluator.audit.auditor import Auditor, Member, member_warnings
from evaluator.contract.audit import Audit, AuditResult, Author
from evaluator.contract.parallelism import ParallelismUsed
from evaluator.contract.reports import FinishedEntry, LedgerEntry
from evaluator.errors import AuditUndecided, LossNotFinite
from evaluator.parallel.group import ScoringGroup
from evaluator.planning.plan import Batch, make_plan
from evaluator.planning.windows import Window
from evaluator.scoring.ledger import Ledger
from evaluator.scoring.score import Scorer, TokenNll

if TYPE_CHECKING:
    from evaluator.exchange.process_group import Peers

T = TypeVar("T")
PLAN = make_plan([Window(n, 0, 3, 0, True) for n in range(24)], batch_tokens=3, basis=b"")
HERE, THERE = "x86_64 this", "x86_64 that"


def truth(batch: Batch) -> float:
    """Made-up nll of the first token of a window."""
    return 1.0 + batch.windows[0].document / 7


Fault = Callable[[float, int], float]
"""What a rank makes of a nll, in its n-th call."""


def scale(nll: float, _call: int) -> float:
    return nll * 1.001


def drift(nll: float, call: int) -> float:
    return nll + call


def overflow(nll: float, _call: int) -> float:
    if nll > 2.0:
        raise LossNotFinite
    return nll * 3


@dataclass
class Playing:
    """Scores as told."""

    fault: Fault | None
    num_calls: int = 0

    def score(self, batch: Batch) -> list[TokenNll]:
        self.num_calls += 1
        nll = truth(batch)
        if self.fault is not None:
            nll = self.fault(nll, self.num_calls)
        return [np.array([nll, 0.0, 0.0])]


@dataclass
class Room:
    """Where all ranks of a test meet; stands in for the store and the process group."""

    size: int
    barrier: threading.Barrier = field(init=False)
    values: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=10)


class Seat:
    """A rank's view of the room."""

    def __init__(self, room: Room, rank: int) -> None:
        self.room, self.rank = room, rank

    def wait_for_all(self, _point: str) -> None:
        self.room.barrier.wait()

    def all_gather(self, value: T) -> list[T]:
        self.room.values[self.rank] = value
        self.room.barrier.wait()
        gathered = [self.room.values[rank] for rank in range(self.room.size)]
        self.room.barrier.wait()
        return gathered


def entry(batch: Batch, nll: float, round_: int = 0) -> LedgerEntry:
    return LedgerEntry(
        batch=batch.index, nll_nats=(nll,), nll_squares=(nll**2,), num_scored=batch.num_scored,
        round=round_, nll_by_context=(nll, 0.0),
    )  # fmt: skip


@dataclass
class Cluster:
    """A run of the audit by threads; batches go round the ranks in turn."""

    size: int
    faults: Mapping[int, Fault] = field(default_factory=dict)
    changed: int | None = None
    """Rank whose weights have changed."""
    taken: list[FinishedEntry] = field(default_factory=list)
    processors: Mapping[int, str] = field(default_factory=dict)
    audit: Audit = field(default_factory=Audit)
    group_size: int = 1
    """Ranks of a scoring group."""
    errors: list[Exception] = field(default_factory=list)
    auditors: dict[int, Auditor] = field(default_factory=dict)
    ledgers: dict[int, Ledger] = field(default_factory=dict)

    def run(self) -> AuditResult:
        """The result, the same on every rank; raises what a rank raised."""
        room = Room(self.size)
        threads = [
            threading.Thread(target=self._play, args=(room, rank), daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if self.errors:
            raise self.errors[0]
        results = [self.auditors[rank].result for rank in range(self.size)]
        assert all(result == results[0] for result in results)
        return results[0]

    def total(self) -> list[tuple[int, float]]:
        """Batches and nll that count in the end; each batch once."""
        entries = [each.entry for each in self.auditors[0].taken]
        entries += [entry for ledger in self.ledgers.values() for entry in ledger.added]
        return sorted((entry.batch, entry.nll_nats[0]) for entry in entries)

    def _play(self, room: Room, rank: int) -> None:
        try:
            self._work(room, rank)
        except threading.BrokenBarrierError:
            pass
        except Exception as error:  # noqa: BLE001 - told to the test
            self.errors.append(error)
            room.barrier.abort()

    def _work(self, room: Room, rank: int) -> None:
        scorer = Playing(self.faults.get(rank))
        members = [
            Member(
                Author(attempt=2, rank=each, node_rank=each // 2, host="here"),
                self.processors.get(each, HERE),
                "3.12.1",
            )
            for each in range(self.size)
        ]
        ways = ParallelismUsed(dp_replicate=self.size // self.group_size, tp=self.group_size)
        group = ScoringGroup(used=ways, rank=rank)
        auditor = self.auditors[rank] = Auditor(
            group=group, peers=cast("Peers", Seat(room, rank)), plan=PLAN,
            scorer=cast("Scorer", scorer), audit=self.audit, dtype="float32", device_type="cpu",
            members=members, taken=list(self.taken), moves=lambda: None,
            is_intact=lambda: self.changed is None or group.number_of(self.changed) != group.number,
        )  # fmt: skip
        ledger = self.ledgers[rank] = Ledger(PLAN)
        ledger.take_over(each.entry for each in self.taken)
        indices, round_ = ledger.unfinished, 0
        while indices or round_ == 0:
            num_before = len(ledger.added)
            healthy = sorted(auditor.healthy)
            if group.number in healthy:
                for index in indices[healthy.index(group.number) :: len(healthy)]:
                    (nll,) = scorer.score(PLAN.batches[index])
                    if group.leads:
                        ledger.add(entry(PLAN.batches[index], float(nll[0]), round_))
            indices = auditor.look(ledger, ledger.added[num_before:])
            auditor.check_somebody_is_left()
            round_ += 1


CLEAN = [(batch.index, truth(batch)) for batch in PLAN.batches]


def suspects(result: AuditResult) -> dict[tuple[int, int], str]:
    """Reason by attempt and rank."""
    return {(each.author.attempt, each.author.rank): each.reason for each in result.quarantined}


def finished(rank: int, batches: slice, fault: Fault | None = None) -> list[FinishedEntry]:
    who = Author(attempt=1, rank=rank, node_rank=rank // 2, host="here")
    return [
        FinishedEntry(
            author=who, entry=entry(batch, fault(truth(batch), 1) if fault else truth(batch))
        )
        for batch in PLAN.batches[batches]
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_clean_run_drops_nothing(size: int) -> None:
    cluster = Cluster(size)
    result = cluster.run()
    assert (result.num_windows, result.num_unchecked_batches) == (2 * size, 0)
    assert (result.quarantined, result.largest_difference) == ((), 0.0)
    assert cluster.total() == CLEAN


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("fault", [scale, drift])
def test_one_wrong_rank_is_found_wherever_it_is(size: int, fault: Fault) -> None:
    for rank in range(size):
        cluster = Cluster(size, {rank: fault})
        result = cluster.run()
        assert list(suspects(result)) == [(2, rank)]
        assert result.quarantined[0].num_batches == len(range(rank, 24, size))
        assert result.num_unchecked_batches == 0
        assert cluster.total() == CLEAN


def test_two_wrong_ranks_of_five_are_found_though_they_agree() -> None:
    cluster = Cluster(5, {0: scale, 3: scale}, audit=Audit(windows_per_rank=4))
    assert suspects(cluster.run()).keys() == {(2, 0), (2, 3)}
    assert cluster.total() == CLEAN


def test_of_two_ranks_the_one_that_contradicts_itself_is_wrong() -> None:
    cluster = Cluster(2, {1: drift})
    result = cluster.run()
    assert suspects(result) == {(2, 1): "not_repeatable"}
    # Nobody is left to check what rank 0 has done.
    assert result.num_unchecked_batches == 24
    assert cluster.total() == CLEAN


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_whose_weights_have_changed_is_wrong_without_a_vote(size: int) -> None:
    cluster = Cluster(size, {1: scale}, changed=1)
    result = cluster.run()
    assert suspects(result) == {(2, 1): "weights_changed"}
    assert result.quarantined[0].window is None
    assert cluster.total() == CLEAN


def test_a_single_rank_whose_weights_have_changed_fails_and_is_named() -> None:
    cluster = Cluster(1, changed=0)
    with pytest.raises(AuditUndecided, match=r"rank 0 of attempt 2 .*weights changed"):
        cluster.run()
    assert suspects(cluster.auditors[0].result) == {(2, 0): "weights_changed"}


@pytest.mark.parametrize("number", range(3))
def test_a_wrong_group_is_named_and_quarantined_as_a_whole(number: int) -> None:
    first = 2 * number
    faults = {first: scale, first + 1: scale}
    cluster = Cluster(6, faults, group_size=2, audit=Audit(share=0.25))
    result = cluster.run()
    (suspect,) = result.quarantined
    assert (suspect.author.rank, suspect.ranks) == (first, (first, first + 1))
    # Three groups, and the right ones share what the wrong one had: 2 + 2 + 2, then 1 + 1.
    assert (suspect.num_batches, result.num_unchecked_batches) == (8, 0)
    assert cluster.total() == CLEAN


def test_a_group_is_wrong_where_the_weights_of_any_of_its_ranks_have_changed() -> None:
    cluster = Cluster(4, group_size=2, changed=3)
    (suspect,) = cluster.run().quarantined
    assert (suspect.reason, suspect.ranks) == ("weights_changed", (2, 3))
    assert cluster.total() == CLEAN


def test_a_group_alone_has_nobody_to_check_it() -> None:
    result = Cluster(2, group_size=2).run()
    assert (result.num_windows, result.num_unchecked_batches) == (0, 24)
    assert result.why_none == ("there is one scoring group: nobody else could score a window again")
    with pytest.raises(AuditUndecided, match=r"ranks 0 to 1 of attempt 2 .*weights changed"):
        Cluster(2, group_size=2, changed=1).run()


def test_of_two_ranks_that_repeat_themselves_nobody_is_blamed() -> None:
    with pytest.raises(AuditUndecided, match=r"rank [01] of attempt 2.* rank [01] of attempt 2"):
        Cluster(2, {1: scale}).run()


def test_a_rank_that_comes_to_no_finite_number_is_wrong() -> None:
    # As an auditor only: what it scored itself would have ended it.
    cluster = Cluster(3, {2: overflow}, taken=finished(0, slice(24)), audit=Audit(share=0.5))
    assert suspects(cluster.run()).keys() == {(2, 2)}
    assert cluster.total() == CLEAN


def test_of_an_earlier_attempt_only_the_wrong_rank_is_dropped() -> None:
    taken = finished(0, slice(8)) + finished(1, slice(8, 16), scale)
    cluster = Cluster(2, taken=taken)
    result = cluster.run()
    assert suspects(result) == {(1, 1): "outvoted"}
    assert (result.quarantined[0].num_batches, len(cluster.auditors[0].taken)) == (8, 8)
    assert cluster.total() == CLEAN


def test_a_node_that_was_wrong_in_the_last_attempt_does_not_outvote_the_other() -> None:
    taken = finished(0, slice(12)) + finished(1, slice(12, 24), scale)
    with pytest.raises(AuditUndecided):
        Cluster(2, {1: scale}, taken=taken).run()


def test_one_rank_alone_checks_nothing_and_says_so() -> None:
    cluster = Cluster(1, taken=finished(0, slice(8), scale))
    result = cluster.run()
    assert (result.num_windows, result.num_unchecked_batches) == (0, 24)
    assert result.why_none == "there is one rank: nobody else could score a window again"


def test_switched_off_it_says_so() -> None:
    result = Cluster(3, {1: scale}, audit=Audit(share=0)).run()
    assert (result.num_windows, result.num_unchecked_batches) == (0, 24)
    assert result.why_none == "audit.share is 0"


def round_otherwise(nll: float, _call: int) -> float:
    return nll * (1 + 1e-7)


def test_other_processors_may_round_otherwise() -> None:
    cluster = Cluster(3, {1: round_otherwise}, processors={1: THERE})
    result = cluster.run()
    assert (result.quarantined, result.tolerance) == ((), 1e-6)
    assert 0 < result.largest_difference < 1e-8
    assert suspects(Cluster(3, {1: round_otherwise}).run()).keys() == {(2, 1)}
    assert suspects(Cluster(3, {1: scale}, processors={1: THERE}).run()).keys() == {(2, 1)}


def test_ranks_with_other_pythons_or_processors_are_warned_of() -> None:
    def member(rank: int, processor: str, python: str) -> Member:
        return Member(Author(attempt=1, rank=rank, node_rank=rank, host="h"), processor, python)

    same = [member(0, HERE, "3.12.1"), member(1, HERE, "3.12.1")]
    assert member_warnings(same) == ()
    (warning,) = member_warnings([*same, member(2, HERE, "3.13.0")])
    assert warning.startswith(
        "python differs: 3.12.1 on rank 0 of attempt 1 (node 0, h), 3.13.0 on"
    )
    (warning,) = member_warnings([*same, member(2, THERE, "3.12.1")])
    assert "x86_64 that on rank 2 of attempt 1 (node 2, h)" in warning
