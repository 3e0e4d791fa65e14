"""Ranks and launchers that are killed: nothing hangs, nothing is left, nothing is lost."""

import os
import signal
from pathlib import Path

import pytest

from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import Hello, NodeTiming
from tests.support.runs import (
    Launched,
    is_alive,
    launched,
    make_spec,
    read_spool,
    run_here,
    write_finished,
)
from tests.support.server import wait_for
from tests.support.tiny import words

WITHIN_S = 90.0
SCORING = {"convention": "hf-strided", "window": 128, "stride": 8, "batch_tokens": 128}


TRIAL_WORDS = 1000
WORK_S = 8.0
"""Of one core, as fast as this machine is; progress with the first batches comes after 1 s."""


@pytest.fixture(scope="module")
def num_words(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Words that one rank takes `WORK_S` to score."""
    run_dir = tmp_path_factory.mktemp("trial")
    run_here(long_spec(tiny, TRIAL_WORDS), run_dir)
    (node,) = [report for report in read_spool(run_dir) if isinstance(report, NodeTiming)]
    return round(TRIAL_WORDS * WORK_S / node.ranks[0].compute_s)


def long_spec(tiny: Path, num_words: int) -> LaunchSpec:
    """Work in many small pieces: a forward for every 8 tokens."""
    return make_spec(tiny, [words(num_words, 1), words(60, 2)], scoring=SCORING)


def hellos(run: Launched) -> list[Hello] | None:
    """The first words of all ranks, once all are there."""
    found = [run.hello(rank) for rank in range(run.num_ranks)]
    return [h for h in found if h is not None] if all(found) else None


def ranks_of(run: Launched) -> list[Hello]:
    found: list[Hello] = wait_for(
        lambda: hellos(run), within_s=WITHIN_S, what="all ranks said hello"
    )
    return found


def test_a_killed_rank_ends_the_run_and_a_second_one_scores_only_the_rest(
    tiny: Path, tmp_path: Path, num_words: int
) -> None:
    spec = long_spec(tiny, num_words)
    with launched(spec, tmp_path / "first", num_ranks=2) as first:
        ranks = ranks_of(first)
        wait_for(
            lambda: len({r.rank for r in first.reports() if getattr(r, "entries", ())}) == 2,
            within_s=WITHIN_S,
            what="both ranks reported batches",
        )
        os.kill(ranks[1].pid, signal.SIGKILL)
        assert first.wait() != 0
        assert not any(is_alive(rank.pid) for rank in ranks)
    plan = first.plan()
    assert plan is not None
    entries = first.entries()
    assert 0 < len(entries) < plan.plan.num_batches

    finished = write_finished(tmp_path / "finished.jsonl", entries)
    again = spec.model_copy(
        update={
            "attempt": 2,
            "finished_path": str(finished),
            "finished_plan": plan.plan.digest,
            "finished_model": plan.model_digest,
        }
    )
    with launched(again, tmp_path / "second", num_ranks=2) as second:
        assert second.wait() == 0, second.output
    result = second.result()
    assert result.num_batches_resumed == len(entries)
    num_new = plan.plan.num_batches - len(entries)
    assert len(second.entries()) == num_new
    assert not {e.batch for e in entries} & {e.batch for e in second.entries()}
    alone = run_here(spec, tmp_path / "alone")
    assert result.perplexity == alone.perplexity
    assert result.perplexity.nll_sum_nats.hex() == alone.perplexity.nll_sum_nats.hex()


def test_ranks_end_when_torchrun_is_killed(tiny: Path, tmp_path: Path, num_words: int) -> None:
    with launched(long_spec(tiny, 5 * num_words), tmp_path, num_ranks=2) as run:
        ranks = ranks_of(run)
        run.process.kill()
        wait_for(
            lambda: not any(is_alive(rank.pid) for rank in ranks),
            within_s=10,
            what="the ranks ended with their launcher",
        )


def test_a_rank_ends_at_once_on_sigterm(tiny: Path, tmp_path: Path, num_words: int) -> None:
    with launched(long_spec(tiny, 5 * num_words), tmp_path, num_ranks=0) as run:
        wait_for(lambda: run.entries(), within_s=WITHIN_S, what="batches were scored")
        run.process.terminate()
        assert run.wait(within_s=5) == -signal.SIGTERM
