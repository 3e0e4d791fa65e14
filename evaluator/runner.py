"""The run itself: load, tokenise, plan, score, reduce, report."""

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from evaluator import device as devices
from evaluator import process_group
from evaluator.agreement import agree, check_finished, identity
from evaluator.audit import difference
from evaluator.auditing import Auditor, Member, tolerance
from evaluator.contexts import nll_by_context
from evaluator.contract.audit import AuditResult
from evaluator.contract.env import TOKENS_FILE, WINDOWS_FILE
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import LedgerEntry, PackedTraffic, RankTiming, Result, Traffic
from evaluator.faults import with_fault
from evaluator.forward import Cut, cut_model
from evaluator.hierarchy import ExactTotal
from evaluator.ledger import Ledger, read_finished
from evaluator.micro_batch import ElasticBudget, MicroBatches
from evaluator.model import LoadedModel, digest_weights, silence_libraries
from evaluator.narrator import Narrator
from evaluator.packing import Extremes, KeptTokens, Packing, check_packed, packed_traffic
from evaluator.perplexity import measure
from evaluator.plan import Plan
from evaluator.prepare import Text, load_weights, prepare_text, text_warnings
from evaluator.process_group import Peers
from evaluator.ranks import RankInfo
from evaluator.records import window_records, write_records, write_tokens
from evaluator.reduce import (
    Circumstances,
    join_ledgers,
    make_result,
    memory_warnings,
    scored_windows,
    value_warnings,
)
from evaluator.schedule import Schedule, Work
from evaluator.score import Scorer
from evaluator.share import Share
from evaluator.speed import SharedSpeed, SpeedModel
from evaluator.timing import RankClock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a rank has once it can score."""

    model: LoadedModel
    model_digest: str
    """As rank 0 has it."""
    text: Text
    cut: Cut


class WrittenTokens(NamedTuple):
    """The nll of tokens, in its file."""

    digest: str
    traffic: PackedTraffic


class Outcome(NamedTuple):
    """What all ranks together came to; on rank 0."""

    resumed: list[LedgerEntry]
    """Of earlier attempts, as far as they were trusted."""
    added: list[list[LedgerEntry]]
    """By rank."""
    timings: list[RankTiming]
    tokens: WrittenTokens | None
    audit: AuditResult
    sync_total: float
    """Nll in nats, as ranks reduced it."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One rank's part of a run."""

    spec: LaunchSpec
    rank: RankInfo
    clock: RankClock
    narrator: Narrator
    run_dir: Path

    def execute(self) -> Result | None:
        """Do all of it.

        Returns:
            The result on rank 0, None elsewhere.

        Raises:
            EvaluatorError: The run can't go on.
        """
        self.narrator.enter("load")
        silence_libraries()
        device = devices.choose_device(self.spec.launch.device, self.rank.local_rank)
        devices.settle(self.spec.launch.threads_per_rank)
        if device.type == "cuda":
            self.clock.peak_memory_bytes = devices.peak_allocated_bytes
        with self.clock.measure("communicate"):
            peers = process_group.connect(self.rank, self.spec, self.narrator.recorder)
        self.clock.traffic = peers.traffic.snapshot
        try:
            return self._execute(peers, device)
        finally:
            process_group.leave()

    def _execute(self, peers: Peers, device: torch.device) -> Result | None:
        setup = self._set_up(peers, device)
        resumed = self._read_finished(setup)
        ledger = self.narrator.ledger = Ledger(setup.text.plan)
        ledger.take_over(resumed)
        self.narrator.enter("score")
        share = self._share(peers, setup, device)
        auditor = self._auditor(peers, setup, share, device)
        self._score(peers, share, auditor, ledger)
        self.narrator.enter("reduce")
        resumed = [entry for entry in resumed if ledger.has(entry)]
        sync = self._sync_total(peers, ledger, resumed)
        added, timings = self._gather(peers, ledger)
        tokens = self._write_tokens(peers, setup.text.plan, share.tokens, added)
        if added is None or timings is None or sync is None:
            return None
        result = self._result(
            setup, device, Outcome(resumed, added, timings, tokens, auditor.result, sync)
        )
        self.narrator.result(result)
        return result

    def _score(self, peers: Peers, share: Share, auditor: Auditor, ledger: Ledger) -> None:
        """Score everything, and again what the audit does not trust."""
        taken = ledger.entries
        indices, round_ = ledger.unfinished, 0
        while indices or round_ == 0:
            num_before = len(ledger.added)
            if self.rank.rank in auditor.healthy:
                work = Work.of(auditor.plan, indices)
                share.work(work, ledger, auditor.healthy, round_)
            self.narrator.enter("audit")
            with self.clock.measure("wait"):
                peers.wait_for_all(f"scored/{round_}")
            num_suspects = len(auditor.suspects)
            with self.clock.measure("audit"):
                indices = auditor.look(ledger, ledger.added[num_before:], taken)
            share.forget(indices)
            taken, round_ = [], round_ + 1
            for suspect in auditor.suspects[num_suspects:]:
                logger.error("a rank was found to be wrong", extra=suspect.model_dump())
                if self.rank.rank == 0:
                    self.narrator.quarantine(suspect)

    def _auditor(self, peers: Peers, setup: Setup, share: Share, device: torch.device) -> Auditor:
        me = Member(self.rank.node_rank, socket.gethostname())
        return Auditor(
            rank=self.rank,
            peers=peers,
            plan=setup.text.plan,
            scorer=share.micro_batches.scorer,
            audit=self.spec.audit,
            tolerance=tolerance(self.spec.audit, self.spec.launch.dtype, device.type),
            members=peers.all_gather(me),
        )

    def _sync_total(
        self, peers: Peers, ledger: Ledger, resumed: Sequence[LedgerEntry]
    ) -> float | None:
        """The nll of all ranks, reduced on rank 0, which adds what was taken over."""
        entries = [*ledger.added, *(resumed if self.rank.rank == 0 else [])]
        total = ExactTotal.of(nll for entry in entries for nll in entry.nll_nats)
        reduced = peers.reduce(total)
        return None if reduced is None else reduced.nll_nats

    def _set_up(self, peers: Peers, device: torch.device) -> Setup:
        cache_dir = Path(self.spec.cache_dir or Path.home() / ".cache" / "assay")
        with self.clock.measure("load"):
            weights = load_weights(self.spec, device, cache_dir, digest=self.rank.leads_node)
        self.narrator.enter("tokenise")
        with self.clock.measure("tokenise"):
            text = prepare_text(self.spec, weights.loaded, cache_dir, self.narrator.tick)
        with self.clock.measure("load"):
            model_digest = weights.wait_for_digest()
        if self.rank.rank == 0:
            self.narrator.plan_ready(text.plan.facts, model_digest)
        with self.clock.measure("wait"):
            agreed = agree(
                peers, self.rank, identity(text, model_digest, digest_weights(weights.loaded.model))
            )
            peers.form_group(device)
        self.narrator.enter("warm_up")
        with self.clock.measure("warm_up"):
            cut = cut_model(weights.loaded.model, weights.loaded.num_rows)
        return Setup(model=weights.loaded, model_digest=str(agreed["model"]), text=text, cut=cut)

    def _read_finished(self, setup: Setup) -> list[LedgerEntry]:
        if self.spec.finished_path is None:
            return []
        check_finished(self.spec, setup.text.plan.facts.digest, setup.model_digest)
        if self._keeps_tokens:
            # Entries hold sums; the nll of their tokens went with the attempt that scored them.
            return []
        return read_finished(Path(self.spec.finished_path))

    def _share(self, peers: Peers, setup: Setup, device: torch.device) -> Share:
        plain = Scorer(
            forward=setup.cut.forward,
            documents=setup.text.documents,
            prefix_token_id=setup.text.convention.prefix.token_id,
            device=device,
            dtype=self.spec.launch.dtype,
        )
        micro_batches = MicroBatches(
            scorer=with_fault(plain, setup.model.model, self.rank.rank, os.environ),
            budget=ElasticBudget(),
            free_memory=partial(devices.free_memory, device),
        )
        schedule = self._schedule(peers, setup.model_digest)
        self.clock.speeds = lambda: schedule.speed.measured
        self.clock.num_out_of_memory = lambda: micro_batches.budget.num_out_of_memory
        return Share(
            rank=self.rank,
            peers=peers,
            schedule=schedule,
            micro_batches=micro_batches,
            clock=self.clock,
            narrator=self.narrator,
            tokens={} if self._keeps_tokens else None,
        )

    def _schedule(self, peers: Peers, model_digest: str) -> Schedule:
        me = socket.gethostname(), model_digest
        start = {(s.host, s.model_digest): s.speeds for s in self.spec.node_speeds}.get(me, ())
        return Schedule(
            scheduling=self.spec.launch.scheduling,
            rank=self.rank.rank,
            shared=SharedSpeed(peers.add_speed, self.rank.world_size),
            speed=SpeedModel(start),
        )

    @property
    def _keeps_tokens(self) -> bool:
        return self.spec.outputs.token_nll != "none"  # noqa: S105 - tokens of a text

    def _write_tokens(
        self,
        peers: Peers,
        plan: Plan,
        tokens: KeptTokens | None,
        added: list[list[LedgerEntry]] | None,
    ) -> WrittenTokens | None:
        """Write them on rank 0; None elsewhere, and where none were asked for."""
        kind = self.spec.outputs.token_nll
        if tokens is None or kind == "none":
            return None
        with self.clock.measure("communicate"):
            packing = Packing.for_all(kind, peers.all_gather(Extremes.of(tokens)))
            parts = peers.gather(packing.pack_all(tokens))
        if parts is None or added is None:
            return None
        check_packed(packing, parts, {e.batch: e for entries in added for e in entries})
        digest = write_tokens(self.run_dir / TOKENS_FILE, plan, parts, packing)
        return WrittenTokens(digest, packed_traffic(parts))

    def _gather(
        self, peers: Peers, ledger: Ledger
    ) -> tuple[list[list[LedgerEntry]] | None, list[RankTiming] | None]:
        """Entries of all ranks, and where their time went; on rank 0."""
        with self.clock.measure("wait"):
            peers.wait_for_all("done")
        with self.clock.measure("communicate"):
            added = peers.gather(ledger.added)
        timings = peers.gather_by_node(self.clock.snapshot())
        if timings.node is not None:
            self.narrator.node_timing(timings.node)
        return added, timings.all

    def _result(
        self,
        setup: Setup,
        device: torch.device,
        outcome: Outcome,
    ) -> Result:
        ledger = join_ledgers(setup.text.plan, outcome.resumed, outcome.added)
        windows = scored_windows(ledger, setup.text.plan)
        value = measure(windows, setup.text.size)
        records = window_records(windows, setup.text.documents)
        circumstances = Circumstances(
            model_digest=setup.model_digest,
            windows_digest=write_records(self.run_dir / WINDOWS_FILE, records),
            tokens_digest=outcome.tokens.digest if outcome.tokens else None,
            nll_by_context=nll_by_context(setup.text.plan, ledger.entries),
            device=devices.describe(device),
            world_size=self.rank.world_size,
            num_batches_resumed=len(outcome.resumed),
            audit=outcome.audit,
            sync_error=difference(outcome.sync_total, value.nll_sum_nats),
            traffic=sum((timing.traffic for timing in outcome.timings), start=Traffic()),
            packed=outcome.tokens.traffic if outcome.tokens else None,
            wall_s=self.clock.wall_s,
            warnings=setup.model.warnings
            + setup.cut.warnings
            + text_warnings(setup.text, setup.model)
            + memory_warnings(outcome.timings, device)
            + value_warnings(value, setup.model.num_rows),
        )
        return make_result(value, setup.text, self.spec, self.narrator.next_seq, circumstances)
