import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.contract.reports import LedgerEntry
from evaluator.errors import PlanMismatch
from evaluator.planning.plan import Plan, make_plan
from evaluator.planning.windows import PrefixPlace, Window, document_windows, lm_eval

LENGTHS = st.lists(st.integers(min_value=1, max_value=60), min_size=1, max_size=12)


def windows_of(lengths: list[int], window: int = 8) -> list[Window]:
    return [
        w
        for document, length in enumerate(lengths)
        for w in document_windows(document, length, lm_eval(window, PrefixPlace.FIRST))
    ]


def plan_of(lengths: list[int], *, batch_tokens: int = 16, basis: bytes = b"x") -> Plan:
    return make_plan(windows_of(lengths), batch_tokens=batch_tokens, basis=basis)


def test_batches_by_hand() -> None:
    # Windows of 8, 8, 8, 8, 8 | 3, 3 | 1 inputs; two of 8 fill 16 tokens.
    plan = plan_of([8, 3, 24, 1, 3, 8])
    shape = [(b.windows[0].num_inputs, [w.document for w in b.windows]) for b in plan.batches]
    assert shape == [(8, [0, 2]), (8, [2, 2]), (8, [5]), (3, [1, 4]), (1, [3])]
    assert plan.facts.num_windows == 8
    assert plan.facts.num_documents == 6
    assert plan.facts.num_batches == 5
    assert plan.facts.num_input_tokens == 5 * 8 + 2 * 3 + 1
    assert plan.facts.num_scored_tokens == 8 + 3 + 24 + 1 + 3 + 8


@given(LENGTHS, st.integers(min_value=2, max_value=64))
def test_batches_hold_each_window_once_unpadded_and_within_the_budget(
    lengths: list[int], batch_tokens: int
) -> None:
    plan = plan_of(lengths, batch_tokens=batch_tokens)
    assert sorted(w for b in plan.batches for w in b.windows) == sorted(windows_of(lengths))
    assert [b.index for b in plan.batches] == list(range(len(plan.batches)))
    for batch in plan.batches:
        assert len({w.num_inputs for w in batch.windows}) == 1
        assert batch.num_input_tokens <= batch_tokens or len(batch.windows) == 1
    costs = [b.windows[0].num_inputs for b in plan.batches]
    assert costs == sorted(costs, reverse=True)


def test_digest_is_stable() -> None:
    digest = plan_of([8, 3, 24]).facts.digest
    assert digest == plan_of([8, 3, 24]).facts.digest
    # Pinned: a plan that changes by accident would make finished work of a running job useless.
    assert digest == "sha256:18c246062dbd110563759f312713f03510a0dfd593c6b02930386cf93c773aa3"


@pytest.mark.parametrize(
    "other",
    [
        plan_of([8, 3, 25]),
        plan_of([8, 24, 3]),
        plan_of([8, 3, 24], batch_tokens=8),
        plan_of([8, 3, 24], basis=b"y"),
    ],
    ids=["length", "order", "batches", "basis"],
)
def test_digest_tells_plans_apart(other: Plan) -> None:
    assert other.facts.digest != plan_of([8, 3, 24]).facts.digest


def entry(batch: int, num_scored: tuple[int, ...]) -> LedgerEntry:
    ones = (1.0,) * len(num_scored)
    return LedgerEntry(
        batch=batch,
        nll_nats=ones,
        nll_squares=ones,
        num_scored=num_scored,
        nll_by_context=(1.0,) * max(num_scored).bit_length(),
    )


def test_check_takes_the_entries_of_the_plan() -> None:
    plan = plan_of([8, 3])
    plan.check(entry(0, (8,)))
    plan.check(entry(1, (3,)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (entry(2, (1,)), "batch 2 is finished, but the plan has 2 batches"),
        (entry(0, (7,)), r"batch 0 was scored with \(7,\)"),
        (entry(0, (8, 8)), r"batch 0 was scored with \(8, 8\)"),
    ],
    ids=["no such batch", "other tokens", "other windows"],
)
def test_check_refuses_other_entries(wrong: LedgerEntry, message: str) -> None:
    with pytest.raises(PlanMismatch, match=message):
        plan_of([8, 3]).check(wrong)
