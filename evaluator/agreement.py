"""Makes sure that all ranks, and all attempts, mean the same before anything is scored."""

import json

from evaluator.contract.launch import LaunchSpec
from evaluator.errors import PlanMismatch
from evaluator.forward import NUMERICS
from evaluator.prepare import Text
from evaluator.process_group import Peers
from evaluator.ranks import RankInfo
from evaluator.versions import PACKAGES, versions

FIELDS = (*PACKAGES, "model", "weights", "data", "tokenizer", "ids", "scoring", "numerics", "plan")
"""Compared in this order: the first that differs is the cause of what follows."""


def identity(text: Text, model_digest: str | None, weights_digest: str) -> dict[str, object]:
    """What must be equal on all ranks; without the model where another rank read it.

    Args:
        text: What is scored.
        model_digest: Of the files.
        weights_digest: Of the weights in memory, which may differ from the files.
    """
    facts: dict[str, object] = {
        # Another python computes the same; the result warns of it.
        **{name: versions()[name] for name in PACKAGES},
        "weights": weights_digest,
        "data": text.corpus.data_digest,
        "tokenizer": text.tokenizer_digest,
        "ids": text.corpus.ids_digest,
        "scoring": text.convention.used.model_dump(),
        "numerics": NUMERICS,
        "plan": text.plan.facts.digest,
    }
    if model_digest is not None:
        facts["model"] = model_digest
    return facts


def agree(peers: Peers, rank: RankInfo, mine: dict[str, object]) -> dict[str, object]:
    """Compare with rank 0.

    Returns:
        What rank 0 has, which is all of `FIELDS`.

    Raises:
        PlanMismatch: It names rank and field.
    """
    if rank.rank == 0:
        peers.publish("identity", json.dumps(mine))
        return mine
    theirs: dict[str, object] = json.loads(peers.read("identity", owner=0))
    for field in FIELDS:
        if field in mine and mine[field] != theirs[field]:
            msg = (
                f"rank {rank.rank} (node {rank.node_rank}) and rank 0 differ in {field}: "
                f"{mine[field]} and {theirs[field]}; give all nodes the same files and versions"
            )
            raise PlanMismatch(msg)
    return theirs


def check_finished(spec: LaunchSpec, plan_digest: str, model_digest: str) -> None:
    """Refuse the work of earlier attempts where it was other work.

    Raises:
        PlanMismatch: It names what changed.
    """
    expected = {"plan": spec.finished_plan, "model": spec.finished_model}
    found = {"plan": plan_digest, "model": model_digest}
    for field, digest in expected.items():
        if digest is not None and digest != found[field]:
            msg = (
                f"the finished batches belong to the {field} {digest}, but now it is "
                f"{found[field]}: data, tokenizer, model, request or the evaluator changed; "
                "start a new job"
            )
            raise PlanMismatch(msg)
