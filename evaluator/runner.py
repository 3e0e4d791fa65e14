"""The run itself: load, tokenise, plan, score, reduce, report."""

from dataclasses import dataclass
from pathlib import Path

import torch

from evaluator import device as devices
from evaluator import process_group
from evaluator.agreement import agree, check_finished, identity
from evaluator.contract.env import TOKENS_FILE, WINDOWS_FILE
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import LedgerEntry, Result
from evaluator.forward import Cut, cut_model
from evaluator.ledger import Ledger, read_finished
from evaluator.model import LoadedModel, silence_libraries
from evaluator.model_files import find_model
from evaluator.narrator import Narrator
from evaluator.parallel.auto import agree_on_parallelism
from evaluator.parallel.context import split_context
from evaluator.parallel.group import ScoringGroup, form
from evaluator.perplexity import measure
from evaluator.plan import Plan
from evaluator.prepare import Text, load_weights, prepare_text, text_warnings
from evaluator.process_group import Peers
from evaluator.ranks import RankInfo
from evaluator.records import KeptTokens, window_records, write_records, write_tokens
from evaluator.reduce import (
    Circumstances,
    join_ledgers,
    make_result,
    scored_windows,
    value_warnings,
)
from evaluator.score import Scorer
from evaluator.share import Share
from evaluator.timing import RankClock


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a rank has once it can score."""

    model: LoadedModel
    model_digest: str
    """As rank 0 has it."""
    text: Text
    cut: Cut
    group: ScoringGroup


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
            peers = process_group.connect(self.rank, self.spec)
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
        share.work(setup.text.plan, ledger)
        self.narrator.enter("reduce")
        added = self._gather(peers, ledger)
        self._write_tokens(peers, setup.text.plan, share.tokens)
        if added is None:
            return None
        result = self._result(setup, device, resumed, added)
        self.narrator.result(result)
        return result

    def _set_up(self, peers: Peers, device: torch.device) -> Setup:
        cache_dir = Path(self.spec.cache_dir or Path.home() / ".cache" / "assay")
        with self.clock.measure("load"):
            files = find_model(self.spec.model, cache_dir)
        group = self._form_group(peers, device, files.folder)
        with self.clock.measure("load"):
            weights = load_weights(self.spec, files, device, group, digest=self.rank.leads_node)
        self.narrator.enter("tokenise")
        with self.clock.measure("tokenise"):
            text = prepare_text(self.spec, weights.loaded, cache_dir)
        with self.clock.measure("load"):
            model_digest = weights.wait_for_digest()
        if self.rank.rank == 0:
            self.narrator.plan_ready(text.plan.facts, model_digest, group.used.shape)
        with self.clock.measure("wait"):
            agreed = agree(peers, self.rank, identity(text, model_digest, group.used.shape))
            peers.form_group(device)
        self.narrator.enter("warm_up")
        with self.clock.measure("warm_up"):
            model, num_rows = weights.loaded.model, weights.loaded.num_rows
            cut = split_context(model, cut_model(model, num_rows), group.cp, num_rows)
        return Setup(
            model=weights.loaded,
            model_digest=str(agreed["model"]),
            text=text,
            cut=cut,
            group=group,
        )

    def _form_group(self, peers: Peers, device: torch.device, folder: Path) -> ScoringGroup:
        """Ranks that score together meet before they load: each loads its part."""
        with self.clock.measure("wait"):
            used = agree_on_parallelism(peers, self.rank, self.spec, folder, device)
            if used.num_ranks > 1:
                peers.form_group(device)
            return form(used, self.rank, device)

    def _read_finished(self, setup: Setup) -> list[LedgerEntry]:
        if self.spec.finished_path is None:
            return []
        plan_digest = setup.text.plan.facts.digest
        check_finished(self.spec, plan_digest, setup.model_digest, setup.group.used.shape)
        if self._keeps_tokens:
            # Entries hold sums; the nll of their tokens went with the attempt that scored them.
            return []
        return read_finished(Path(self.spec.finished_path))

    def _share(self, peers: Peers, setup: Setup, device: torch.device) -> Share:
        scorer = Scorer(
            forward=setup.cut.forward,
            documents=setup.text.documents,
            prefix_token_id=setup.text.convention.prefix.token_id,
            device=device,
            dtype=self.spec.launch.dtype,
            loss=setup.model.loss,
            cp=setup.group.cp,
        )
        return Share(
            rank=self.rank,
            peers=peers,
            group=setup.group,
            scorer=scorer,
            clock=self.clock,
            narrator=self.narrator,
            tokens={} if self._keeps_tokens else None,
        )

    @property
    def _keeps_tokens(self) -> bool:
        return self.spec.outputs.token_nll != "none"  # noqa: S105 - tokens of a text

    def _write_tokens(self, peers: Peers, plan: Plan, tokens: KeptTokens | None) -> None:
        kind = self.spec.outputs.token_nll
        if tokens is None or kind == "none":
            return
        with self.clock.measure("communicate"):
            gathered = peers.gather(tokens)
        if gathered is not None:
            write_tokens(self.run_dir / TOKENS_FILE, plan, gathered, kind)

    def _gather(self, peers: Peers, ledger: Ledger) -> list[list[LedgerEntry]] | None:
        with self.clock.measure("wait"):
            peers.wait_for_all("done")
        with self.clock.measure("communicate"):
            added = peers.gather(ledger.added)
        timings = peers.all_gather(self.clock.snapshot())
        if self.rank.leads_node:
            self.narrator.node_timing(timings)
        return added

    def _result(
        self,
        setup: Setup,
        device: torch.device,
        resumed: list[LedgerEntry],
        added: list[list[LedgerEntry]],
    ) -> Result:
        ledger = join_ledgers(setup.text.plan, resumed, added)
        windows = scored_windows(ledger, setup.text.plan)
        value = measure(windows, setup.text.size)
        records = window_records(windows, setup.text.documents)
        circumstances = Circumstances(
            model_digest=setup.model_digest,
            windows_digest=write_records(self.run_dir / WINDOWS_FILE, records),
            device=devices.describe(device),
            world_size=self.rank.world_size,
            parallelism=setup.group.used,
            num_batches_resumed=len(resumed),
            wall_s=self.clock.wall_s,
            warnings=setup.model.warnings
            + setup.cut.warnings
            + text_warnings(setup.text, setup.model)
            + value_warnings(value, setup.model.num_rows),
        )
        return make_result(value, setup.text, self.spec, self.narrator.next_seq, circumstances)
