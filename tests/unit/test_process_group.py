"""Agreement and waiting among ranks, on threads around one real store."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from evaluator.agreement import agree, check_finished
from evaluator.contract.parallelism import GroupShape
from evaluator.errors import PlanMismatch, Stalled
from evaluator.exchange.process_group import Peers
from evaluator.exchange.ranks import RankInfo
from evaluator.versions import PACKAGES
from tests.support.runs import make_spec

WITHIN_S = 20.0
A, B, C = (f"sha256:{digit * 64}" for digit in "abc")


def peers_of(num_ranks: int, stall_timeout_s: float = WITHIN_S) -> list[Peers]:
    store = dist.HashStore()
    return [
        Peers(RankInfo(rank=r, world_size=num_ranks), store, stall_timeout_s=stall_timeout_s)
        for r in range(num_ranks)
    ]


def together(*bodies: Callable[[], object]) -> list[Exception | None]:
    """Run each body on a thread; what each raised."""
    raised: list[Exception | None] = [None] * len(bodies)

    def work(index: int) -> None:
        try:
            bodies[index]()
        except Exception as error:  # noqa: BLE001 - handed to the test
            raised[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    return raised


def test_batches_are_taken_once_in_each_round() -> None:
    taken: list[int] = []

    def draw(peers: Peers) -> None:
        for amount in (1, 2, 3) * 20:
            begin = peers.take(0, amount)
            taken.extend(range(begin, begin + amount))

    assert together(*(lambda p=p: draw(p) for p in peers_of(4))) == [None] * 4
    assert sorted(taken) == list(range(4 * 120))
    assert peers_of(1)[0].take(1, 5) == 0


def test_all_wait_for_all() -> None:
    passed = threading.Event()
    first, second = peers_of(2)

    def wait() -> None:
        first.wait_for_all("done")
        passed.set()

    def come_late() -> None:
        assert not passed.wait(0.2)
        second.wait_for_all("done")

    assert together(wait, come_late) == [None, None]
    assert passed.is_set()


def test_a_rank_that_does_not_come_is_named() -> None:
    first, second, third = peers_of(3, stall_timeout_s=0.3)
    third.recorder.note("score batch 7")
    raised = together(lambda: first.wait_for_all("done"), lambda: second.wait_for_all("done"))
    for error in raised:
        assert isinstance(error, Stalled)
        assert "waited for ranks [2]; rank 2 last began: score batch 7 at " in error.message


def test_a_slow_rank_that_still_moves_is_waited_for() -> None:
    first, second = peers_of(2, stall_timeout_s=0.5)
    pace = threading.Event()

    def go_on() -> None:
        # Longer than the time-out in all, never that long without a batch.
        for _ in range(10):
            pace.wait(0.15)
            second.recorder.note("score batch 1", wait=True)
        second.wait_for_all("done")

    assert together(lambda: first.wait_for_all("done"), go_on) == [None, None]


def facts(**changes: object) -> dict[str, object]:
    names = (*PACKAGES, "weights", "model", "data", "tokenizer", "ids", "numerics", "plan")
    return {"group": {}, "scoring": {}, **dict.fromkeys(names, A)} | changes


@pytest.mark.parametrize(
    ("mine", "field"),
    [
        (facts(torch=B, tokenizers=B, weights=B), "torch"),
        (facts(group={"tp": 2}, model=B), "group"),
        (facts(model=B, weights=B), "model"),
        (facts(weights=B), "weights"),
        (facts(data=B, ids=B, plan=B), "data"),
        (facts(tokenizer=B, ids=B, plan=B), "tokenizer"),
        (facts(ids=B, plan=B), "ids"),
        (facts(scoring=B, plan=B), "scoring"),
        (facts(numerics=B, plan=B), "numerics"),
        (facts(plan=B), "plan"),
    ],
    ids=[
        *("torch", "group", "model", "weights", "data", "tokenizer", "ids", "scoring"),
        *("numerics", "plan"),
    ],
)
def test_the_rank_and_the_field_that_differ_are_named(mine: dict[str, object], field: str) -> None:
    first, second = peers_of(2)
    none, error = together(
        lambda: agree(first, RankInfo(rank=0, world_size=2), facts()),
        lambda: agree(second, RankInfo(rank=1, node_rank=1, world_size=2), mine),
    )
    assert none is None
    assert isinstance(error, PlanMismatch)
    assert f"rank 1 (node 1) and rank 0 differ in {field}:" in error.message


def test_weights_are_compared_with_the_rank_that_has_the_same_part() -> None:
    everyone = peers_of(4)
    digests = (A, B, A, C)

    def agree_as(rank: int) -> None:
        info = RankInfo(rank=rank, node_rank=rank // 2, world_size=4)
        agree(everyone[rank], info, facts(weights=digests[rank]), rank % 2)

    *fine, error = together(*(partial(agree_as, rank) for rank in range(4)))
    assert fine == [None, None, None]
    assert isinstance(error, PlanMismatch)
    assert f"rank 3 (node 1) and rank 1 differ in weights: {C} and {B}" in error.message


def test_ranks_that_agree_go_on_also_without_having_read_the_weights() -> None:
    first, second = peers_of(2)
    mine = facts()
    del mine["model"]
    agreed: list[object] = []
    raised = together(
        lambda: agree(first, RankInfo(rank=0, world_size=2), facts()),
        lambda: agreed.append(agree(second, RankInfo(rank=1, world_size=2), mine)),
    )
    assert raised == [None, None]
    assert agreed == [facts()]  # so that this rank knows the model too


def test_finished_work_is_taken_only_for_the_same_plan_and_model() -> None:
    spec = make_spec(Path("m"), ["a"], finished_plan=A, finished_model=B)
    alone, split = GroupShape(), GroupShape(tp=2)
    check_finished(spec, A, B, alone)
    with pytest.raises(PlanMismatch, match="belong to the plan"):
        check_finished(spec, B, B, alone)
    with pytest.raises(PlanMismatch, match="belong to the model"):
        check_finished(spec, A, A, alone)
    with pytest.raises(PlanMismatch, match="dp_shard=1 tp=2 cp=1, but now these are dp_shard=1"):
        check_finished(spec.model_copy(update={"finished_group": split}), A, B, alone)
