import itertools

import pytest

from evaluator.exchange.ranks import RankInfo
from evaluator.planning.plan import Batch
from evaluator.planning.windows import Window
from evaluator.reporting.timing import RankClock, peak_resident_bytes


def test_time_is_charged_to_what_it_was_spent_on() -> None:
    ticks = itertools.count(start=100.0, step=1.0)
    busy = itertools.count(step=0.25)
    clock = RankClock(
        RankInfo(rank=3, local_rank=1, node_rank=1), 90.0, ticks.__next__, busy.__next__
    )
    with clock.measure("load"):  # 100 to 101
        pass
    with pytest.raises(ValueError, match="x"), clock.measure("compute"):  # 102 to 103
        raise ValueError("x")
    with clock.measure("compute"):  # 104 to 105
        pass
    clock.count(
        Batch(0, (Window(0, 0, 5, 2, prefixed=True), Window(1, 0, 5, 0, prefixed=True))), 3.0, 2.5
    )
    timing = clock.snapshot()
    assert (timing.rank, timing.local_rank, timing.node_rank) == (3, 1, 1)
    assert (timing.load_s, timing.compute_s, timing.wait_s) == (1.0, 2.0, 0.0)
    assert timing.processor_s == 0.5
    assert timing.wall_s == 16.0
    assert (timing.num_batches, timing.num_input_tokens, timing.num_scored_tokens) == (1, 10, 8)


def test_peak_memory_is_of_this_process() -> None:
    before = peak_resident_bytes()
    block = bytearray(64 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
    assert peak_resident_bytes() >= max(before, 64 << 20)
    assert peak_resident_bytes() < 64 << 30
