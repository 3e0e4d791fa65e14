"""The run itself: load, tokenise, plan, score, reduce, report."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from evaluator import device as devices
from evaluator import process_group
from evaluator.agreement import agree, check_finished, identity
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import LedgerEntry, Result
from evaluator.errors import OutOfMemory, is_out_of_memory
from evaluator.forward import Cut, cut_model
from evaluator.lease import draw_leases, lease_table
from evaluator.ledger import Ledger, read_finished
from evaluator.model import silence_libraries
from evaluator.narrator import Narrator
from evaluator.plan import Batch
from evaluator.prepare import Text, Weights, load_weights, prepare_text, text_warnings
from evaluator.process_group import Peers
from evaluator.ranks import RankInfo
from evaluator.reduce import (
    Circumstances,
    join_ledgers,
    make_result,
    measure_ledger,
    value_warnings,
)
from evaluator.score import Scorer
from evaluator.timing import RankClock

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One rank's part of a run."""

    spec: LaunchSpec
    rank: RankInfo
    clock: RankClock
    narrator: Narrator

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
        with self.clock.measure("wait"):
            peers = process_group.join(self.rank, self.spec, device)
        try:
            return self._execute(peers, device)
        finally:
            process_group.leave()

    def _execute(self, peers: Peers, device: torch.device) -> Result | None:
        with self.clock.measure("load"):
            weights = self._load(device)
        self.narrator.enter("tokenise")
        with self.clock.measure("tokenise"):
            text = prepare_text(self.spec, weights.loaded)
        self._agree(peers, text, weights)
        resumed = self._read_finished(text, weights)
        self.narrator.enter("warm_up")
        with self.clock.measure("warm_up"):
            cut = cut_model(weights.loaded.model, weights.loaded.num_rows)
        self.narrator.enter("score")
        ledger = self._score(peers, text, resumed, self._scorer(text, cut, device))
        self.narrator.enter("reduce")
        added = self._gather(peers, ledger)
        if added is None:
            return None
        result = self._result(text, weights, cut, device, resumed, added)
        self.narrator.result(result)
        return result

    def _load(self, device: torch.device) -> Weights:
        cache_dir = Path(self.spec.cache_dir or Path.home() / ".cache" / "assay")
        return load_weights(self.spec, device, cache_dir, digest=self.rank.leads_node)

    def _agree(self, peers: Peers, text: Text, weights: Weights) -> None:
        with self.clock.measure("load"):
            model_digest = weights.wait_for_digest()
        if self.rank.rank == 0:
            assert model_digest is not None, "rank 0 leads its node"
            self.narrator.plan_ready(text.plan.facts, model_digest)
        with self.clock.measure("wait"):
            agree(peers, self.rank, identity(text, model_digest))

    def _read_finished(self, text: Text, weights: Weights) -> list[LedgerEntry]:
        if self.spec.finished_path is None:
            return []
        check_finished(self.spec, text.plan.facts.digest, weights.wait_for_digest())
        return read_finished(Path(self.spec.finished_path))

    def _scorer(self, text: Text, cut: Cut, device: torch.device) -> Scorer:
        return Scorer(
            forward=cut.forward,
            documents=text.documents,
            prefix_token_id=text.convention.prefix.token_id,
            device=device,
            dtype=self.spec.launch.dtype,
        )

    def _score(
        self, peers: Peers, text: Text, resumed: list[LedgerEntry], scorer: Scorer
    ) -> Ledger:
        ledger = self.narrator.ledger = Ledger(text.plan)
        ledger.take_over(resumed)
        batches = [text.plan.batches[index] for index in ledger.unfinished]
        table = lease_table([b.num_input_tokens for b in batches], self.rank.world_size)
        for lease in draw_leases(table, self._timed(peers.next_ticket)):
            for batch in batches[lease.start : lease.stop]:
                with self.clock.measure("compute"):
                    entry = self._score_batch(scorer, batch)
                ledger.add(entry)
                self.clock.count(batch)
                self._timed(peers.note_batch)()
                self.narrator.tick()
        return ledger

    def _timed(self, exchange: Callable[[], T]) -> Callable[[], T]:
        def call() -> T:
            with self.clock.measure("communicate"):
                return exchange()

        return call

    def _score_batch(self, scorer: Scorer, batch: Batch) -> LedgerEntry:
        try:
            nll_nats = scorer.score(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            msg = (
                f"rank {self.rank.rank} ran out of memory in batch {batch.index} of "
                f"{len(batch.windows)} windows of {batch.windows[0].num_inputs} tokens; "
                f"ask for a smaller scoring.batch_tokens or scoring.window ({error})"
            )
            raise OutOfMemory(msg) from error
        return LedgerEntry(batch=batch.index, nll_nats=nll_nats, num_scored=batch.num_scored)

    def _gather(self, peers: Peers, ledger: Ledger) -> list[list[LedgerEntry]] | None:
        with self.clock.measure("wait"):
            peers.wait_for_all()
        with self.clock.measure("communicate"):
            added = peers.gather(ledger.added)
        timings = peers.all_gather(self.clock.snapshot())
        if self.rank.leads_node:
            self.narrator.node_timing(timings)
        return added

    def _result(
        self,
        text: Text,
        weights: Weights,
        cut: Cut,
        device: torch.device,
        resumed: list[LedgerEntry],
        added: list[list[LedgerEntry]],
    ) -> Result:
        value = measure_ledger(join_ledgers(text.plan, resumed, added), text)
        warnings = (
            weights.loaded.warnings
            + cut.warnings
            + text_warnings(text.convention, weights.loaded)
            + value_warnings(value, weights.loaded.num_rows)
        )
        circumstances = Circumstances(
            model_digest=weights.wait_for_digest(),
            device=devices.describe(device),
            world_size=self.rank.world_size,
            num_batches_resumed=len(resumed),
            wall_s=self.clock.wall_s,
            warnings=warnings,
        )
        return make_result(value, text, self.spec, self.narrator.next_seq, circumstances)
