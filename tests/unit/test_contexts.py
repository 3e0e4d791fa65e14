from pathlib import Path

import numpy as np
import pytest

from evaluator.contract.reports import ContextNll, LedgerEntry
from evaluator.planning.plan import Plan, make_plan
from evaluator.planning.windows import Window
from evaluator.scoring.contexts import nll_by_context, sum_contexts
from tests.support.runs import make_spec, run_here
from tests.support.tiny import save_model, save_tokenizer, words


def entries(plan: Plan, nll: list[list[list[float]]]) -> list[LedgerEntry]:
    """Of the nll of each token of each window of each batch."""
    return [
        LedgerEntry(
            batch=batch.index,
            nll_nats=tuple(sum(row) for row in rows),
            nll_squares=tuple(0.0 for _ in rows),
            num_scored=batch.num_scored,
            nll_by_context=sum_contexts(batch, [np.array(row) for row in rows]),
        )
        for batch, rows in zip(plan.batches, nll, strict=True)
    ]


def test_the_example_of_the_docs() -> None:
    window = Window(document=0, begin=0, end=5, score_begin=1, prefixed=False)
    plan = make_plan([window], batch_tokens=8, basis=b"")
    (entry,) = found = entries(plan, [[[1.0, 2.0, 4.0, 8.0]]])
    assert entry.nll_by_context == (1.0, 6.0, 8.0)
    plan.check(entry)
    assert nll_by_context(plan, found) == (
        ContextNll(
            first_context=1, last_context=1, num_scored_tokens=1, nll_sum_nats=1, mean_nll_nats=1
        ),
        ContextNll(
            first_context=2, last_context=3, num_scored_tokens=2, nll_sum_nats=6, mean_nll_nats=3
        ),
        ContextNll(
            first_context=4, last_context=7, num_scored_tokens=1, nll_sum_nats=8, mean_nll_nats=8
        ),
    )


def test_windows_that_score_their_end_alone_and_windows_with_a_prefix() -> None:
    # Inputs: p 0 1 2, targets 0 1 2 3 with contexts 1 2 3 4; then inputs 4 5 6 7, targets 7 and 8
    # with contexts 3 and 4; then the single input 8 with context 1.
    windows = [
        Window(document=0, begin=0, end=4, score_begin=0, prefixed=True),
        Window(document=0, begin=4, end=9, score_begin=7, prefixed=False),
        Window(document=1, begin=8, end=10, score_begin=9, prefixed=False),
    ]
    plan = make_plan(windows, batch_tokens=8, basis=b"")
    found = entries(plan, [[[1.0, 2.0, 4.0, 8.0], [16.0, 32.0]], [[64.0]]])
    curve = nll_by_context(plan, found)
    assert [(each.first_context, each.num_scored_tokens, each.nll_sum_nats) for each in curve] == [
        (1, 2, 65.0),
        (2, 3, 22.0),
        (4, 2, 40.0),
    ]
    assert sum(each.num_scored_tokens for each in curve) == plan.facts.num_scored_tokens


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 100])
def test_every_token_is_in_one_bucket(length: int) -> None:
    window = Window(document=0, begin=0, end=length + 1, score_begin=1, prefixed=False)
    plan = make_plan([window], batch_tokens=8, basis=b"")
    found = entries(plan, [[[1.0] * length]])
    curve = nll_by_context(plan, found)
    contexts = range(1, length + 1)
    for each in curve:
        inside = [c for c in contexts if each.first_context <= c <= each.last_context]
        assert (each.num_scored_tokens, each.nll_sum_nats) == (len(inside), len(inside))
    assert sum(each.num_scored_tokens for each in curve) == length


def test_buckets_without_a_scored_token_are_left_out() -> None:
    window = Window(document=0, begin=0, end=9, score_begin=8, prefixed=False)
    plan = make_plan([window], batch_tokens=8, basis=b"")
    (only,) = nll_by_context(plan, entries(plan, [[[2.5]]]))
    assert (only.first_context, only.last_context, only.mean_nll_nats) == (8, 15, 2.5)


def test_the_curve_is_that_of_the_kept_tokens(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    spec = make_spec(
        tmp_path / "model",
        [words(60, seed=3), words(9, seed=4)],
        scoring={"convention": "hf-strided", "window": 16, "stride": 6},
        outputs={"token_nll": "float16"},
    )
    result = run_here(spec, tmp_path / "run")
    kept = np.load(tmp_path / "run" / "tokens.npz")
    contexts = np.concatenate(
        [
            first + np.arange(num)
            for first, num in zip(kept["context"], kept["num_scored"], strict=True)
        ]
    )
    assert result.nll_by_context[-1].last_context >= contexts.max()
    for each in result.nll_by_context:
        inside = (each.first_context <= contexts) & (contexts <= each.last_context)
        assert each.num_scored_tokens == inside.sum()
        assert each.nll_sum_nats == pytest.approx(
            float(kept["nll"][inside].sum(dtype=np.float64)), rel=1e-3
        )
