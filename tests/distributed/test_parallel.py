"""Scoring groups: what several ranks compute together is what one computes alone, to 1e-5."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evaluator.contract.env import TOKENS_FILE
from evaluator.contract.reports import (
    Failure,
    LedgerEntry,
    NodeTiming,
    Progress,
    RankTiming,
    Result,
)
from evaluator.contract.states import FailureReason
from tests.support.runs import ROOT, make_spec, read_spool, run_here, write_finished
from tests.support.tiny import Family, save_family, words

SAME = 1e-5
FAMILIES: tuple[Family, ...] = ("llama", "qwen", "gpt2")
ON_TWO: tuple[Family, ...] = (*FAMILIES, "gemma")
CAPS_SCORES = ("gemma", {"cp": 2})
# Windows of 64, 60, 13 and 4 inputs and of 1: fewer than ranks, odd ones, and several in a batch.
TEXTS = [words(300, 2), words(40, 3), words(12, 5), "ab", "a"]
SCORING = {"convention": "lm-eval", "window": 63, "batch_tokens": 256}
PAIRS = [{"dp_shard": 2, "tp": 2}, {"dp_shard": 2, "cp": 2}, {"tp": 2, "cp": 2}]
SINGLES: list[dict[str, int]] = [{"dp_shard": 2}, {"tp": 2}, {"cp": 2}]
SCHEDULING = {"-dp_shard2": "predictive", "-tp2": "static", "-cp2": "dynamic"}

BIG_LAYERS = 40
"""A rank holds half of the model and one layer twice, as it is gathered and as it is used."""
BIG = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": BIG_LAYERS,
    "num_key_value_heads": 4,
}
PEAK_SHARE = 0.6


@dataclass(frozen=True)
class Runs:
    """What several specs came to, in the same ranks."""

    folder: Path
    num_ranks: int
    output: str

    def result(self, name: str) -> Result:
        """Of a spec; the output is shown where there is none."""
        results = [r for r in read_spool(self.folder / name) if isinstance(r, Result)]
        assert len(results) == 1, self.output[-4000:]
        return results[0]

    def refusals(self, name: str) -> list[Failure]:
        """Of all ranks."""
        spools = [read_spool(self.folder / name, rank) for rank in range(self.num_ranks)]
        return [r for reports in spools for r in reports if isinstance(r, Failure)]

    def timings(self, name: str) -> list[RankTiming]:
        """Of all ranks."""
        (node,) = [r for r in read_spool(self.folder / name) if isinstance(r, NodeTiming)]
        return list(node.ranks)


def name_of(family: str, ways: dict[str, int]) -> str:
    return "-".join([family, *(f"{name}{number}" for name, number in ways.items())])


def spec_line(
    model: Path,
    name: str,
    parallelism: object,
    *,
    fault: str = "",
    scheduling: str = "dynamic",
    **fields: Any,
) -> str:
    launch = {"device": "cpu", "parallelism": parallelism, "scheduling": scheduling}
    fields = {"scoring": SCORING, "launch": launch} | fields
    spec = make_spec(model, fields.pop("texts", TEXTS), job_id=name, **fields)
    return json.dumps({"spec": spec.model_dump(mode="json"), "fault": fault})


def run_all(folder: Path, lines: Iterable[str], num_ranks: int, *, ends_well: bool = True) -> Runs:
    folder.mkdir(exist_ok=True)
    (folder / "specs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.many_runs", str(folder), str(num_ranks)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )  # fmt: skip
    assert (done.returncode == 0) == ends_well, done.stderr[-4000:]
    return Runs(folder, num_ranks, done.stderr)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {family: save_family(folder / family, family) for family in (*ON_TWO, "mamba")}


@pytest.fixture(scope="module")
def alone_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone")


@pytest.fixture(scope="module")
def alone(models: dict[str, Path], alone_folder: Path) -> dict[str, Result]:
    """Each family on one rank."""
    return {
        family: run_here(make_spec(models[family], TEXTS, scoring=SCORING), alone_folder / family)
        for family in ON_TWO
    }


@pytest.fixture(scope="module")
def two(
    models: dict[str, Path],
    alone: dict[str, Result],
    alone_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Runs:
    folder = tmp_path_factory.mktemp("two")
    finished = finish(alone["llama"], entries_of(alone_folder / "llama")[:1], folder)
    big = save_family(folder / "big-model", "llama", **BIG)
    odd = save_family(folder / "odd-model", "llama", num_attention_heads=1, num_key_value_heads=1)
    short = [words(4)]
    lines = [
        spec_line(models["llama"], "small", {"dp_shard": 2}, texts=short),
        spec_line(big, "big", {"dp_shard": 2}, texts=short),
        *(
            spec_line(models[family], name_of(family, ways), ways)
            for family in ON_TWO
            for ways in SINGLES
        ),
        spec_line(models["llama"], "auto", "auto"),
        spec_line(models["llama"], "resumed", "auto", **finished),
        spec_line(models["llama"], "other-group", {"dp_shard": 2}, **finished),
        spec_line(models["mamba"], "no-attention", {"cp": 2}),
        spec_line(models["mamba"], "no-plan", {"tp": 2}),
        spec_line(odd, "heads", {"tp": 2}),
        spec_line(models["llama"], "product", {"tp": 3}),
        # The last one: it ends the ranks.
        spec_line(models["qwen"], "killed", {"tp": 2}, fault="1:die"),
    ]
    return run_all(folder, lines, 2, ends_well=False)


@pytest.fixture(scope="module")
def four(models: dict[str, Path], two: Runs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("four")
    saved = finish(two.result("qwen-tp2"), entries_of(two.folder / "killed"), folder)
    lines = [
        *(
            spec_line(models[family], name_of(family, ways), ways)
            for family in FAMILIES
            for ways in PAIRS
        ),
        *(
            spec_line(
                models["qwen"], f"twice-{name_of('qwen', ways)}", ways,
                outputs={"token_nll": "float16"}, scheduling=SCHEDULING[name_of("", ways)],
            )
            for ways in SINGLES
        ),
        *(
            spec_line(models["qwen"], f"flipped-{name_of('qwen', ways)}", ways, fault="3:flip")
            for ways in SINGLES
        ),
        spec_line(models["qwen"], "after-death", {"tp": 2}, **saved),
    ]  # fmt: skip
    return run_all(folder, lines, 4)


def entries_of(run_dir: Path, rank: int = 0) -> list[LedgerEntry]:
    return [e for r in read_spool(run_dir, rank) if isinstance(r, Progress) for e in r.entries]


def finish(result: Result, entries: list[LedgerEntry], folder: Path) -> dict[str, Any]:
    """Fields of a spec whose attempts before have scored these, in groups that split by tp."""
    return {
        "finished_path": str(write_finished(folder / "finished.jsonl", entries)),
        "finished_plan": result.plan.digest,
        "finished_model": result.model_digest,
        "finished_group": {"tp": 2},
        "attempt": 2,
    }


def agrees(found: Result, expected: Result) -> None:
    assert found.plan == expected.plan
    for name in ("nll_sum_nats", "mean_nll_standard_error", "naive_standard_error"):
        value = getattr(expected.perplexity, name)
        assert getattr(found.perplexity, name) == pytest.approx(value, rel=SAME), name
    assert found.perplexity.num_scored_tokens == expected.perplexity.num_scored_tokens


@pytest.mark.parametrize("family", ON_TWO)
@pytest.mark.parametrize("ways", SINGLES, ids=lambda ways: name_of("", ways))
def test_two_ranks_together(
    two: Runs, alone: dict[str, Result], family: str, ways: dict[str, int]
) -> None:
    if (family, ways) == CAPS_SCORES:
        assert "its attention has softcap" in two.refusals(name_of(family, ways))[0].message
        return
    found = two.result(name_of(family, ways))
    agrees(found, alone[family])
    used = {"dp_replicate": 1, "dp_shard": 1, "tp": 1, "cp": 1} | ways
    assert found.parallelism.model_dump(exclude={"reason"}) == used


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ways", PAIRS, ids=lambda ways: name_of("", ways))
def test_four_ranks_together(
    four: Runs, alone: dict[str, Result], family: str, ways: dict[str, int]
) -> None:
    agrees(four.result(name_of(family, ways)), alone[family])


@pytest.mark.parametrize("ways", SINGLES, ids=lambda ways: name_of("", ways))
def test_replicas_of_a_group_change_no_bit(two: Runs, four: Runs, ways: dict[str, int]) -> None:
    name = name_of("qwen", ways)
    once, twice = two.result(name), four.result(f"twice-{name}")
    assert twice.parallelism.dp_replicate == 2
    assert twice.perplexity == once.perplexity
    assert twice.windows_digest == once.windows_digest
    # Each batch was counted and reported once, by the first rank of a group.
    timings = four.timings(f"twice-{name}")
    assert sum(t.num_scored_tokens for t in timings) == twice.plan.num_scored_tokens
    for timing in timings:
        leads = timing.rank in (0, 2)
        num_entries = len(entries_of(four.folder / f"twice-{name}", timing.rank))
        assert num_entries == timing.num_batches
        assert (timing.num_leases > 0, len(timing.speeds) > 0) == (num_entries > 0,) * 2
        # Where groups take what they can, one may come too late for any.
        assert (num_entries > 0) == leads if name == "qwen-tp2" else num_entries == 0 or leads
    assert sum(t.num_batches for t in timings) == twice.plan.num_batches
    # A group checks the other one, and is checked by it.
    assert (twice.audit.num_windows > 0, twice.audit.largest_difference) == (True, 0.0)
    assert once.audit.why_none == (
        "there is one scoring group: nobody else could score a window again"
    )
    assert (four.folder / f"twice-{name}" / TOKENS_FILE).exists()


@pytest.mark.parametrize("ways", SINGLES, ids=lambda ways: name_of("", ways))
def test_a_group_with_one_wrong_rank_is_left_out(
    two: Runs, four: Runs, ways: dict[str, int]
) -> None:
    """Rank 3 has a flipped bit in its part of the weights, rank 2 shares the rest with it."""
    name = name_of("qwen", ways)
    found = four.result(f"flipped-{name}")
    (suspect,) = found.audit.quarantined
    assert (suspect.author.rank, suspect.ranks) == (2, (2, 3))
    assert suspect.reason == "weights_changed"
    assert found.perplexity == two.result(name).perplexity


def test_a_group_with_a_dead_rank_ends_and_others_go_on_from_the_ledger(
    two: Runs, four: Runs
) -> None:
    num_finished = len(entries_of(two.folder / "killed"))
    # Rank 0 tells, unless the launcher was quicker to end it.
    for failure in two.refusals("killed"):
        assert failure.reason is FailureReason.COMMUNICATION
        assert "rank 0 lost its scoring group in batch 2: " in failure.message
        assert "; rank 1 last began: " in failure.message
    clean, found = two.result("qwen-tp2"), four.result("after-death")
    assert 0 < num_finished < clean.plan.num_batches
    assert found.num_batches_resumed == num_finished
    assert found.perplexity == clean.perplexity
    assert found.windows_digest == clean.windows_digest


def test_a_rank_holds_its_part_of_the_weights(two: Runs) -> None:
    """Less what the process has anyway: a run of a tiny model, in the same ranks, before."""
    weights_bytes = (two.folder / "big-model" / "model.safetensors").stat().st_size
    before, after = two.timings("small"), two.timings("big")
    for base, peak in zip(before, after, strict=True):
        used_bytes = peak.peak_memory_bytes - base.peak_memory_bytes
        # More than nothing: the peak of a process never falls, so the order of runs matters.
        assert 0.4 * weights_bytes < used_bytes < PEAK_SHARE * weights_bytes


def test_auto_replicates_what_fits_and_says_so(two: Runs, alone: dict[str, Result]) -> None:
    found = two.result("auto")
    assert found.parallelism.dp_replicate == 2
    assert "fit into what a rank may use" in found.parallelism.reason
    assert found.perplexity == alone["llama"].perplexity


def test_auto_keeps_the_groups_of_the_attempts_before(two: Runs, alone: dict[str, Result]) -> None:
    found = two.result("resumed")
    assert (found.parallelism.tp, found.parallelism.reason) == (2, "as in the attempts before")
    assert found.num_batches_resumed == 1
    assert len(entries_of(two.folder / "resumed")) == found.plan.num_batches - 1
    agrees(found, alone["llama"])


def test_batches_of_other_groups_are_refused(two: Runs) -> None:
    refusals = two.refusals("other-group")
    assert [r.reason for r in refusals] == [FailureReason.PLAN_MISMATCH] * 2
    assert "scoring groups of dp_shard=1 tp=2 cp=1" in refusals[0].message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-attention", "MambaForCausalLM can't be split by cp"),
        ("no-plan", "MambaForCausalLM can't be split by tp"),
        ("heads", "tp is 2, but the model has 1 attention heads and 1 key/value heads"),
        ("product", "tp 3 x cp 1 is 3, which does not divide 2 ranks"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_all_ranks(
    two: Runs, name: str, message: str
) -> None:
    refusals = two.refusals(name)
    assert [r.reason for r in refusals] == [FailureReason.PARALLELISM_INVALID] * 2
    assert all(message in r.message for r in refusals)
