import pytest

from evaluator.audit import (
    Case,
    Claim,
    Undecided,
    assign,
    choose,
    disputed,
    judge,
    largest_difference,
)
from evaluator.contract.reports import LedgerEntry


def entry(batch: int, *nll: float) -> LedgerEntry:
    return LedgerEntry(
        batch=batch,
        nll_nats=nll,
        nll_squares=tuple(1.0 for _ in nll),
        num_scored=tuple(1 for _ in nll),
        nll_by_context=(sum(nll),),
    )


def case(scorer: int | None, nll: float, **opinions: float) -> Case:
    """Opinions are given as `r1=2.0`."""
    said = {int(name[1:]): value for name, value in opinions.items()}
    return Case(Claim(scorer, 0, 0, nll), said)


@pytest.mark.parametrize(
    ("num_windows", "share", "least", "expected"),
    [(1000, 0.01, 2, 10), (150, 0.01, 2, 2), (1, 0.01, 2, 1), (301, 0.01, 2, 4), (5, 1.0, 2, 5)],
)
def test_the_sample_has_its_share_but_some_at_least(
    num_windows: int, share: float, least: int, expected: int
) -> None:
    entries = [entry(batch, 1.0) for batch in range(num_windows)]
    claims = choose(1, entries, share=share, least=least, seed="s")
    assert len(set(claims)) == len(claims) == expected
    assert claims == choose(1, reversed(entries), share=share, least=least, seed="s")


def test_another_seed_is_another_sample() -> None:
    entries = [entry(batch, 1.0, 2.0) for batch in range(500)]
    samples = {tuple(choose(1, entries, share=0.01, least=2, seed=str(n))) for n in range(5)}
    assert len(samples) == 5
    assert {claim.position for sample in samples for claim in sample} == {0, 1}


def test_a_check_goes_to_another_node_where_there_is_one() -> None:
    cases = [case(0, 1.0), case(1, 1.0), case(2, 1.0), case(3, 1.0)]
    asked = assign(cases, nodes=[0, 0, 1, 1], healthy=range(4))
    by_case = {index: rank for rank, indices in asked.items() for index in indices}
    assert {index: by_case[index] // 2 for index in by_case} == {0: 1, 1: 1, 2: 0, 3: 0}
    asked = assign(cases, nodes=[0, 0, 0, 0], healthy=[0, 1])
    assert sum(map(len, asked.values())) == 4
    assert all(rank != index for rank, indices in asked.items() for index in indices)


def test_nobody_is_asked_twice_and_a_case_may_be_left() -> None:
    assert assign([case(0, 1.0, r1=2.0)], nodes=[0, 0, 0], healthy=range(3)) == {2: [0]}
    assert assign([case(0, 1.0, r1=2.0)], nodes=[0, 0], healthy=range(2)) == {}
    assert assign([case(None, 1.0)], nodes=[0], healthy=[0]) == {0: [0]}


def test_the_odd_one_of_three_is_wrong() -> None:
    (wrong,) = judge([case(0, 1.5, r1=1.5), case(1, 2.0, r0=3.0, r2=3.0)], 0.0)
    assert (wrong.scorer, wrong.nll_nats, wrong.nll_nats_by_others) == (1, 2.0, 3.0)
    (wrong,) = judge([case(1, 3.0, r0=2.0, r2=3.0)], 0.0)
    assert (wrong.scorer, wrong.nll_nats, wrong.nll_nats_by_others) == (0, 2.0, 3.0)
    (wrong,) = judge([case(None, 2.0, r0=3.0, r1=3.0)], 0.0)
    assert wrong.scorer is None


@pytest.mark.parametrize(
    "torn", [case(0, 1.0, r1=2.0), case(0, 1.0, r1=2.0, r2=3.0)], ids=["two", "three"]
)
def test_without_a_majority_nobody_is_blamed(torn: Case) -> None:
    with pytest.raises(Undecided):
        judge([torn], 0.0)


def test_tolerance_is_relative_but_not_for_tiny_windows() -> None:
    assert not disputed(case(0, 1000.0, r1=1000.9), 1e-3)
    assert disputed(case(0, 1000.0, r1=1001.1), 1e-3)
    assert not disputed(case(0, 1e-5, r1=2e-5), 1e-3)
    assert disputed(case(0, 1.0, r1=1.0000000000000002), 0.0)


def test_the_largest_difference_leaves_out_those_who_are_wrong() -> None:
    cases = [case(0, 100.0, r1=101.0), case(2, 100.0, r1=100.5)]
    assert largest_difference(cases, {0: ...}) == pytest.approx(0.5 / 100.5)
    assert largest_difference(cases, {1: ...}) == 0.0
