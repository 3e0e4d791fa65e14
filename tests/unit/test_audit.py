import pytest

from evaluator.audit.verdict import (
    Case,
    Claim,
    Nll,
    assign,
    choose,
    difference,
    is_disputed,
    judge,
    lacks_opinion,
    largest_difference,
)
from evaluator.contract.audit import Author
from evaluator.contract.reports import LedgerEntry


def entry(batch: int, *nll: float) -> LedgerEntry:
    return LedgerEntry(
        batch=batch,
        nll_nats=nll,
        nll_squares=tuple(1.0 for _ in nll),
        num_scored=tuple(1 for _ in nll),
        nll_by_context=(sum(nll),),
    )


def author(rank: int, node_rank: int = 0, *, attempt: int = 2) -> Author:
    return Author(attempt=attempt, rank=rank, node_rank=node_rank, host="here")


def case(owner: int | None, nll: float, said: dict[int, Nll], tolerance: float = 0.0) -> Case:
    """Of attempt 2; without an owner the claim is of rank 0 in attempt 1."""
    who = author(0, attempt=1) if owner is None else author(owner)
    return Case(Claim(who, 0, 0, nll), owner, tolerance, said)


@pytest.mark.parametrize(
    ("num_windows", "share", "least", "expected"),
    [(1000, 0.01, 2, 10), (150, 0.01, 2, 2), (1, 0.01, 2, 1), (301, 0.01, 2, 4), (5, 1.0, 2, 5)],
)
def test_the_sample_has_its_share_but_some_at_least(
    num_windows: int, share: float, least: int, expected: int
) -> None:
    entries = [entry(batch, 1.0) for batch in range(num_windows)]
    claims = choose(author(1), entries, share=share, least=least, seed="s")
    assert len(set(claims)) == len(claims) == expected
    assert claims == choose(author(1), reversed(entries), share=share, least=least, seed="s")


def test_another_seed_or_author_is_another_sample() -> None:
    entries = [entry(batch, 1.0, 2.0) for batch in range(500)]
    samples = {
        tuple(claim[1:] for claim in choose(who, entries, share=0.01, least=2, seed=seed))
        for seed in ("a", "b", "c")
        for who in (author(1), author(2), author(1, attempt=1))
    }
    assert len(samples) == 9
    assert {position for sample in samples for _, position, _ in sample} == {0, 1}
    assert all(nll == 1.0 + position for sample in samples for _, position, nll in sample)


def test_a_check_goes_to_another_node_where_there_is_one() -> None:
    cases = [case(rank, 1.0, {}) for rank in range(4)]
    two_nodes = [author(rank, rank // 2) for rank in range(4)]
    for index, each in enumerate(cases):
        each.claim = each.claim._replace(author=two_nodes[index])
    asked = assign(cases, two_nodes, range(4))
    by_case = {index: rank // 2 for rank, indices in asked.items() for index in indices}
    assert by_case == {0: 1, 1: 1, 2: 0, 3: 0}
    asked = assign(cases, [author(rank) for rank in range(4)], healthy=[0, 1])
    assert sum(map(len, asked.values())) == 4
    assert all(rank != index for rank, indices in asked.items() for index in indices)


def test_a_claim_needs_two_ranks_of_this_attempt_behind_it() -> None:
    assert lacks_opinion(case(0, 1.0, {}), {0, 1})
    assert not lacks_opinion(case(0, 1.0, {1: 1.0}), {0, 1})
    assert lacks_opinion(case(0, 1.0, {1: 1.0}), {0, 2})
    assert lacks_opinion(case(None, 1.0, {1: 1.0}), {0, 1})
    assert not lacks_opinion(case(None, 1.0, {1: 1.0, 0: 1.0}), {0, 1})


def test_nobody_is_asked_twice_and_a_case_may_be_left() -> None:
    here = [author(rank) for rank in range(3)]
    assert assign([case(0, 1.0, {1: 2.0})], here, range(3)) == {2: [0]}
    assert assign([case(0, 1.0, {1: 2.0})], here, range(2)) == {}
    assert assign([case(None, 1.0, {})], here, [0]) == {0: [0]}


@pytest.mark.parametrize(
    ("dispute", "again", "wrong"),
    [
        # The one who scored, the one who checked, and the one who was only asked.
        (case(1, 2.0, {0: 3.0}), {0: 3.0, 1: 2.0, 2: 3.0}, {1: ("outvoted", 2.0, 3.0)}),
        (case(1, 3.0, {0: 2.0}), {0: 2.0, 1: 3.0, 2: 3.0}, {0: ("outvoted", 2.0, 3.0)}),
        (
            case(1, 2.0, {0: 3.0}),
            {0: 3.0, 1: 2.0, 2: 4.0, 3: 3.0, 4: 3.0},
            {1: ("outvoted", 2.0, 3.0), 2: ("outvoted", 4.0, 3.0)},
        ),
        # Two that are wrong alike, of five.
        (
            case(1, 2.0, {0: 3.0}),
            {0: 3.0, 1: 2.0, 2: 2.0, 3: 3.0, 4: 3.0},
            {1: ("outvoted", 2.0, 3.0), 2: ("outvoted", 2.0, 3.0)},
        ),
        # No finite number is a number that nobody agrees with.
        (case(1, 2.0, {0: None}), {0: None, 1: 2.0, 2: 2.0}, {0: ("outvoted", None, 2.0)}),
        # Two ranks: who does not come to its own number again is wrong.
        (case(1, 2.0, {0: 3.0}), {0: 3.0, 1: 3.0}, {1: ("not_repeatable", 2.0, 3.0)}),
        (case(1, 2.0, {0: 3.0}), {0: 3.0, 1: 5.0}, {1: ("not_repeatable", 2.0, 3.0)}),
        (case(1, 2.0, {0: None}), {0: None, 1: 2.0}, {0: ("not_repeatable", None, 2.0)}),
        # An earlier attempt against two that agree.
        (case(None, 2.0, {0: 3.0, 1: 3.0}), {0: 3.0, 1: 3.0}, {None: ("outvoted", 2.0, 3.0)}),
    ],
)
def test_who_is_wrong(
    dispute: Case, again: dict[int, Nll], wrong: dict[int | None, tuple[str, Nll, Nll]]
) -> None:
    assert {who: tuple(why) for who, why in judge(dispute, again).items()} == wrong


@pytest.mark.parametrize(
    ("dispute", "again"),
    [
        (case(0, 1.0, {1: 2.0}), {0: 1.0, 1: 2.0}),
        (case(0, 1.0, {1: 2.0}), {0: 1.0, 1: 2.0, 2: 3.0}),
        (case(0, 1.0, {1: 2.0}), {0: 1.0, 1: 2.0, 2: 1.0, 3: 2.0}),
        # The node that was wrong in the last attempt agrees with itself; that is no second voice.
        (case(None, 2.0, {0: 3.0, 1: 2.0}), {0: 3.0, 1: 2.0}),
    ],
    ids=["two", "three-ways", "two-pairs", "a-node-and-its-past"],
)
def test_without_a_majority_nobody_is_blamed(dispute: Case, again: dict[int, Nll]) -> None:
    assert judge(dispute, again) == {}


def test_who_is_known_to_be_wrong_neither_disputes_nor_is_disputed() -> None:
    dispute = case(0, 1.0, {1: 2.0})
    assert is_disputed(dispute, {0, 1})
    assert not is_disputed(dispute, {0})
    assert not is_disputed(dispute, {1})
    assert is_disputed(case(None, 1.0, {0: 1.0, 1: 2.0}), {0, 1})


def test_tolerance_is_relative_but_not_for_small_windows() -> None:
    assert not is_disputed(case(0, 1000.0, {1: 1000.9}, 1e-3), {0, 1})
    assert is_disputed(case(0, 1000.0, {1: 1001.1}, 1e-3), {0, 1})
    assert not is_disputed(case(0, 0.5, {1: 0.56}, 1e-3), {0, 1})
    assert is_disputed(case(0, 0.5, {1: 0.57}, 1e-3), {0, 1})
    assert is_disputed(case(0, 1.0, {1: 1.0000000000000002}), {0, 1})
    assert difference(100.0, 101.0) == pytest.approx(1 / 101)


def test_the_largest_difference_leaves_out_those_who_are_wrong() -> None:
    cases = [case(0, 100.0, {1: 101.0}), case(2, 100.0, {1: 100.5, 3: None})]
    assert largest_difference(cases, {1, 2, 3}) == pytest.approx(0.5 / 100.5)
    assert largest_difference(cases, {0, 2}) == 0.0
