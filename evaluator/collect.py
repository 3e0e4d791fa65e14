"""The end of a run: what all ranks scored comes together on rank 0, which makes the result."""

from typing import NamedTuple

from evaluator.audit.auditor import Auditor, member_warnings
from evaluator.contract.env import TOKENS_FILE, WINDOWS_FILE
from evaluator.contract.reports import LedgerEntry, PackedTraffic, RankTiming, Result, Traffic
from evaluator.exchange.hierarchy import ExactTotal
from evaluator.exchange.packing import Extremes, KeptTokens, Packing, check_packed, packed_traffic
from evaluator.figure.efficiency import efficiency
from evaluator.figure.perplexity import measure
from evaluator.figure.records import window_records, write_records, write_tokens
from evaluator.figure.reduce import (
    join_ledgers,
    memory_warnings,
    relative_error,
    scored_windows,
    value_warnings,
)
from evaluator.model import device as devices
from evaluator.model.cost import Cost, why_unknown
from evaluator.model.limits import measure_limits
from evaluator.planning.plan import Plan
from evaluator.prepare import text_warnings
from evaluator.run_context import RunContext
from evaluator.scoring.contexts import nll_by_context
from evaluator.scoring.ledger import Ledger
from evaluator.set_up import Setup
from evaluator.versions import versions


class WrittenTokens(NamedTuple):
    """The nll of tokens, in its file."""

    digest: str
    traffic: PackedTraffic


class Collected(NamedTuple):
    """What all ranks together came to; on rank 0."""

    sync_total: float
    """Nll in nats, as ranks reduced it."""
    added: list[list[LedgerEntry]]
    """By rank."""
    timings: list[RankTiming]
    tokens: WrittenTokens | None


def collect(
    run: RunContext, setup: Setup, ledger: Ledger, auditor: Auditor, tokens: KeptTokens | None
) -> Result | None:
    """Bring all together; all ranks call it.

    Returns:
        The result on rank 0, None elsewhere.

    Raises:
        EvaluatorError: A rank is gone, or what came together is not whole.
    """
    if isinstance(setup.cost, Cost):
        head = setup.model.model.get_output_embeddings()
        run.clock.limits = measure_limits(head.weight)
    resumed = [finished.entry for finished in auditor.taken]
    collected = _gather(run, setup.text.plan, ledger, resumed, tokens)
    if collected is None:
        return None
    return _result(run, setup, resumed, collected, auditor)


def _gather(
    run: RunContext,
    plan: Plan,
    ledger: Ledger,
    resumed: list[LedgerEntry],
    tokens: KeptTokens | None,
) -> Collected | None:
    entries = [*ledger.added, *(resumed if run.rank.rank == 0 else [])]
    total = run.peers.reduce(ExactTotal.of(nll for entry in entries for nll in entry.nll_nats))
    with run.clock.measure("wait"):
        run.peers.wait_for_all("done")
    with run.clock.measure("communicate"):
        added = run.peers.gather(ledger.added)
    timings = run.peers.gather_by_node(run.clock.snapshot())
    if timings.node is not None:
        run.narrator.node_timing(timings.node)
    written = None if tokens is None else _write_tokens(run, plan, tokens, added)
    if total is None or added is None or timings.all is None:
        return None
    return Collected(total.nll_nats, added, timings.all, written)


def _write_tokens(
    run: RunContext, plan: Plan, tokens: KeptTokens, added: list[list[LedgerEntry]] | None
) -> WrittenTokens | None:
    """Write them on rank 0; None elsewhere."""
    kind = run.spec.outputs.token_nll
    assert kind != "none", "tokens are kept where they were asked for"
    with run.clock.measure("communicate"):
        packing = Packing.for_all(kind, run.peers.all_gather(Extremes.of(tokens)))
        parts = run.peers.gather(packing.pack_all(tokens))
    if parts is None or added is None:
        return None
    check_packed(packing, parts, {e.batch: e for entries in added for e in entries})
    digest = write_tokens(run.run_dir / TOKENS_FILE, plan, parts, packing)
    return WrittenTokens(digest, packed_traffic(parts))


def _result(
    run: RunContext,
    setup: Setup,
    resumed: list[LedgerEntry],
    collected: Collected,
    auditor: Auditor,
) -> Result:
    text, launch = setup.text, run.spec.launch
    ledger = join_ledgers(text.plan, resumed, collected.added)
    windows = scored_windows(ledger, text.plan)
    value = measure(windows, text.size)
    records = window_records(windows, text.documents)
    return Result(
        rank=0,
        seq=run.narrator.next_seq,
        perplexity=value,
        nll_by_context=nll_by_context(text.plan, ledger.entries),
        scoring=text.convention.used,
        plan=text.plan.facts,
        model_digest=setup.model_digest,
        data_digest=text.corpus.data_digest,
        windows_digest=write_records(run.run_dir / WINDOWS_FILE, records),
        tokens_digest=collected.tokens.digest if collected.tokens else None,
        tokenizer_digest=text.tokenizer_digest,
        device=devices.describe(run.device),
        dtype=launch.dtype,
        threads_per_rank=launch.threads_per_rank,
        world_size=run.rank.world_size,
        parallelism=setup.group.used,
        num_batches_resumed=len(resumed),
        audit=auditor.result,
        sync_error=relative_error(collected.sync_total, value.nll_sum_nats),
        traffic=sum((timing.traffic for timing in collected.timings), start=Traffic()),
        packed=collected.tokens.traffic if collected.tokens else None,
        efficiency=efficiency(collected.timings, why_unknown(setup.cost), _threads(run)),
        wall_s=run.clock.wall_s,
        versions=versions(),
        warnings=setup.model.warnings
        + setup.cut.warnings
        + text_warnings(text, setup.model)
        + memory_warnings(collected.timings, run.device, _num_halvings(run, setup))
        + value_warnings(value, setup.model.num_rows)
        + member_warnings(auditor.members),
    )


def _threads(run: RunContext) -> int | None:
    """Threads of a rank that compute; None where a GPU does."""
    return run.spec.launch.threads_per_rank if run.device.type == "cpu" else None


def _num_halvings(run: RunContext, setup: Setup) -> int:
    """How often earlier attempts had ranks that share a model take smaller parts."""
    return run.spec.num_out_of_memory if setup.group.has_several else 0
