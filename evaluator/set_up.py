"""Until a rank can score: load, tokenise, plan, and make sure that all ranks mean the same."""

from dataclasses import dataclass
from pathlib import Path

from evaluator.agreement import agree, check_finished, identity
from evaluator.contract.reports import FinishedEntry
from evaluator.model.cost import Cost, Unknown, model_cost
from evaluator.model.files import find_model
from evaluator.model.forward import Cut, cut_model
from evaluator.model.loading import LoadedModel, digest_weights
from evaluator.parallel.auto import agree_on_parallelism
from evaluator.parallel.context import split_context
from evaluator.parallel.group import ScoringGroup, form
from evaluator.prepare import Text, load_weights, prepare_text
from evaluator.run_context import RunContext
from evaluator.scoring.ledger import read_finished


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a rank has once it can score."""

    model: LoadedModel
    model_digest: str
    """As rank 0 has it."""
    weights_digest: str
    """Of what is in memory, before anything is scored."""
    text: Text
    cut: Cut
    cost: Cost | Unknown
    group: ScoringGroup


def set_up(run: RunContext) -> Setup:
    """Get ready to score; all ranks call it together.

    Raises:
        EvaluatorError: Model or text can't be used, or ranks do not have the same.
    """
    cache_dir = Path(run.spec.cache_dir or Path.home() / ".cache" / "assay")
    with run.clock.measure("load"):
        files = find_model(run.spec.model, cache_dir)
    group = _form_group(run, files.folder)
    with run.clock.measure("load"):
        weights = load_weights(run.spec, files, run.device, group, digest=run.rank.leads_node)
    run.narrator.enter("tokenise")
    with run.clock.measure("tokenise"):
        text = prepare_text(run.spec, weights.loaded, cache_dir, run.narrator.tick)
    with run.clock.measure("load"):
        model_digest = weights.wait_for_digest()
        weights_digest = digest_weights(weights.loaded.model)
    if run.rank.rank == 0:
        run.narrator.plan_ready(text.plan.facts, model_digest, group.used.shape)
    with run.clock.measure("wait"):
        mine = identity(text, model_digest, weights_digest, group.used.shape)
        agreed = agree(run.peers, run.rank, mine, group.twin)
        run.peers.form_group(run.device)
    run.narrator.enter("warm_up")
    with run.clock.measure("warm_up"):
        model, num_rows = weights.loaded.model, weights.loaded.num_rows
        # Before the body is packed, which hides its matrices.
        cost = Unknown("ranks share the model") if group.has_several else model_cost(model)
        cut = split_context(model, cut_model(model, num_rows), group.cp, num_rows)
    return Setup(
        model=weights.loaded,
        model_digest=str(agreed["model"]),
        weights_digest=weights_digest,
        text=text,
        cut=cut,
        cost=cost,
        group=group,
    )


def _form_group(run: RunContext, folder: Path) -> ScoringGroup:
    """Ranks that score together meet before they load, as each loads its part."""
    with run.clock.measure("wait"):
        used = agree_on_parallelism(run.peers, run.rank, run.spec, folder, run.device)
        if used.num_ranks > 1:
            run.peers.form_group(run.device)
        return form(used, run.rank, run.device)


def read_taken(run: RunContext, setup: Setup) -> list[FinishedEntry]:
    """What earlier attempts finished and this one takes over.

    Raises:
        PlanMismatch: It was other work.
    """
    if run.spec.finished_path is None:
        return []
    shape = setup.group.used.shape
    check_finished(run.spec, setup.text.plan.facts.digest, setup.model_digest, shape)
    if run.keeps_tokens:
        # Entries hold sums; the nll of their tokens went with the attempt that scored them.
        return []
    return read_finished(Path(run.spec.finished_path), run.spec.attempt)
