"""Batches in parts: nothing lost, nothing changed, and a budget that follows memory and speed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evaluator.contract.reports import NodeTiming, RankTiming
from evaluator.figure.reduce import memory_warnings
from evaluator.planning.plan import Batch
from evaluator.planning.windows import Window
from evaluator.scoring.micro_batch import FIRST_PATIENCE, ElasticBudget, FixedBudget, MicroBatches
from evaluator.scoring.score import Scorer, TokenNll
from tests.support.runs import make_spec, read_spool, run_here
from tests.support.tiny import words


def batch_of(num_windows: int, num_inputs: int = 10) -> Batch:
    windows = [Window(d, 0, num_inputs, 0, prefixed=True) for d in range(num_windows)]
    return Batch(3, tuple(windows))


class SmallDevice:
    """Takes so many tokens at a time; a window's nll is its document's number."""

    def __init__(self, most_tokens: int, seconds_per_token: float = 1.0) -> None:
        self.most_tokens = most_tokens
        self.seconds_per_token = seconds_per_token
        self.parts: list[int] = []
        self.now_s = 0.0
        self.num_freed = 0

    def score(self, batch: Batch) -> list[TokenNll]:
        if batch.num_input_tokens > self.most_tokens:
            raise MemoryError
        self.parts.append(len(batch.windows))
        self.now_s += self.seconds_per_token * batch.num_input_tokens
        return [np.full(window.num_scored, window.document, float) for window in batch.windows]

    def free(self) -> None:
        self.num_freed += 1


def on(device: SmallDevice) -> MicroBatches:
    return MicroBatches(
        scorer=device,
        budget=ElasticBudget(),
        free_memory=device.free,
        monotonic=lambda: device.now_s,
    )


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=10, max_value=500))
def test_every_window_is_scored_once_and_in_order(num_windows: int, most_tokens: int) -> None:
    device = SmallDevice(most_tokens)
    found = on(device).score(batch_of(num_windows))
    assert [nll_S[0] for nll_S in found] == list(range(num_windows))
    assert sum(device.parts) == num_windows
    assert max(device.parts) * 10 <= most_tokens


def test_a_batch_that_fits_goes_through_as_a_whole() -> None:
    device = SmallDevice(1000)
    on(device).score(batch_of(100))
    assert device.parts == [100]
    assert device.num_freed == 0


def test_a_batch_that_does_not_fit_is_halved_and_the_next_one_starts_small() -> None:
    device = SmallDevice(300)
    parts = on(device)
    parts.score(batch_of(100))
    assert device.parts == [25, 25, 25, 25]
    assert device.num_freed == parts.budget.num_out_of_memory == 2
    parts.score(batch_of(50))
    assert device.parts[4:] == [25, 25]


def test_a_window_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(MemoryError):
        on(SmallDevice(9)).score(batch_of(4))


@pytest.mark.parametrize(
    ("num_halvings", "parts"), [(0, [10]), (1, [5, 5]), (2, [3, 3, 3, 1]), (9, [1] * 10)]
)
def test_ranks_that_share_a_model_take_parts_that_are_set_beforehand(
    num_halvings: int, parts: list[int]
) -> None:
    device = SmallDevice(1000)
    MicroBatches(
        scorer=device, budget=FixedBudget(num_halvings), free_memory=device.free
    ).score(batch_of(10))  # fmt: skip
    assert device.parts == parts


def test_ranks_that_share_a_model_do_not_split_on_their_way() -> None:
    """The others are inside the forward, and could not follow."""
    device = SmallDevice(60)
    micro_batches = MicroBatches(scorer=device, budget=FixedBudget(0), free_memory=device.free)
    with pytest.raises(MemoryError):
        micro_batches.score(batch_of(10))
    assert device.parts == []


def test_an_error_of_another_kind_is_none_of_its_business() -> None:
    class Broken(SmallDevice):
        def score(self, batch: Batch) -> list[TokenNll]:
            msg = "no"
            raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="no"):
        on(Broken(1000)).score(batch_of(4))


def test_it_grows_again_once_there_is_room_and_it_is_faster() -> None:
    device = SmallDevice(300)
    parts = on(device)
    parts.score(batch_of(100))
    device.most_tokens = 10_000
    device.seconds_per_token = 0.5  # what a larger part gains
    device.parts.clear()
    parts.score(batch_of(400))
    # 4 of 25 went before; 4 more, and so on.
    assert device.parts == [25] * 4 + [50] * 6
    device.seconds_per_token = 0.25
    parts.score(batch_of(400))
    assert device.parts[10:] == [50, 50, 100, 100, 100]


def test_it_stays_small_where_larger_parts_are_no_faster() -> None:
    device = SmallDevice(300)
    parts = on(device)
    parts.score(batch_of(100))
    device.most_tokens = 10_000
    for _ in range(4):
        parts.score(batch_of(400))
    assert device.parts.count(50) == FIRST_PATIENCE
    assert device.parts[-1] == 25


def test_it_tries_more_and_more_rarely_what_does_not_fit() -> None:
    device = SmallDevice(300)
    parts = on(device)
    for _ in range(40):
        parts.score(batch_of(100))
    # After 8, 16, 32 and 64 parts of 25; at first there were two.
    assert parts.budget.num_out_of_memory == 2 + 4


def timing(rank: int, num_out_of_memory: int) -> RankTiming:
    return RankTiming(rank=rank, local_rank=rank, node_rank=0, num_out_of_memory=num_out_of_memory)


def test_a_result_says_where_smaller_parts_may_have_changed_bits() -> None:
    timings = [timing(0, 0), timing(1, 3)]
    assert memory_warnings(timings, torch.device("cpu")) == ()
    assert memory_warnings(timings[:1], torch.device("cuda")) == ()
    (before,) = memory_warnings(timings[:1], torch.device("cuda"), num_before=2)
    assert before.startswith("2 forwards ran out of memory")
    (warning,) = memory_warnings(timings, torch.device("cuda"))
    assert warning.startswith("3 forwards ran out of memory")


def test_parts_change_no_bit_on_a_cpu(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = {"convention": "lm-eval", "window": 16, "batch_tokens": 128}
    spec = make_spec(tiny, [words(300, 1), words(9, 2)], scoring=scoring)
    whole = run_here(spec, tmp_path / "whole")
    score = Scorer.score

    def of_little_memory(self: Scorer, batch: Batch) -> list[TokenNll]:
        if batch.num_input_tokens > 50:
            raise MemoryError
        return score(self, batch)

    monkeypatch.setattr(Scorer, "score", of_little_memory)
    parts = run_here(spec, tmp_path / "parts")
    assert parts.perplexity == whole.perplexity
    assert parts.windows_digest == whole.windows_digest
    (node,) = (r for r in read_spool(tmp_path / "parts") if isinstance(r, NodeTiming))
    # 128 and 64 do not fit, 32 does; after 8 parts, 16 and 32, larger ones are tried again.
    assert node.ranks[0].num_out_of_memory >= 2
    assert node.ranks[0].num_input_tokens == whole.plan.num_input_tokens
