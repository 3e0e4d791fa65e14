import pytest

from app.jobs.skew import find_slowest, measure_speeds
from evaluator.contract.reports import RankTiming


def rank(
    number: int, compute: float, tokens: int, load: float = 1.0, wait: float = 0.0
) -> RankTiming:
    return RankTiming(
        rank=number, local_rank=number, node_rank=number // 2, load_s=load, tokenise_s=0.5,
        warm_up_s=0.25, compute_s=compute, wait_s=wait, num_input_tokens=tokens,
    )  # fmt: skip


def test_the_example_of_the_docs() -> None:
    # 10, 10 and 30 ms a token.
    timings = [rank(0, 10.0, 1000), rank(1, 8.0, 800), rank(2, 12.0, 400, wait=1.0)]
    speeds = measure_speeds(timings)
    assert speeds is not None
    assert (speeds.least_seconds, speeds.most_seconds) == (0.01, 0.03)
    assert speeds.ratio == pytest.approx(3)
    assert speeds.coefficient_of_variation == pytest.approx((8 / 9) ** 0.5 / (5 / 3))
    slowest = find_slowest(timings)
    assert slowest is not None
    assert (slowest.rank, slowest.node_rank, slowest.reason) == (2, 1, "slow_compute")
    assert slowest.compute_excess_seconds == pytest.approx(12 - 400 * 0.01)
    assert (slowest.load_excess_seconds, slowest.waiting_seconds) == (0.0, 1.0)


def test_a_slow_disk_is_told_from_a_slow_processor() -> None:
    slowest = find_slowest([rank(0, 10.0, 1000), rank(1, 10.0, 1000, load=9.0), rank(2, 9.0, 900)])
    assert slowest is not None
    assert (slowest.rank, slowest.reason, slowest.load_excess_seconds) == (1, "slow_load", 8.0)


def test_a_rank_that_only_waited_is_not_slow() -> None:
    timings = [rank(0, 10.0, 1000, wait=4.0), rank(1, 10.0, 1000, wait=4.0)]
    slowest = find_slowest(timings)
    assert slowest is not None
    assert (slowest.rank, slowest.reason, slowest.compute_excess_seconds) == (0, "waiting", 0.0)
    speeds = measure_speeds(timings)
    assert speeds is not None
    assert (speeds.ratio, speeds.coefficient_of_variation) == (1.0, 0.0)


def test_one_rank_and_ranks_before_their_first_batch_are_not_compared() -> None:
    assert measure_speeds([rank(0, 1.0, 100), rank(1, 0.0, 0)]) is None
    assert find_slowest([rank(0, 1.0, 100)]) is None
    early = find_slowest([rank(0, 0.0, 0), rank(1, 0.0, 0, load=3.0)])
    assert early is not None
    assert (early.rank, early.reason) == (1, "slow_load")
