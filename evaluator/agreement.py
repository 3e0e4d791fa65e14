"""Makes sure that all ranks, and all attempts, mean the same before anything is scored."""

import json

from evaluator.contract.launch import LaunchSpec
from evaluator.contract.parallelism import GroupShape
from evaluator.errors import PlanMismatch
from evaluator.exchange.process_group import Peers
from evaluator.exchange.ranks import RankInfo
from evaluator.model.forward import NUMERICS
from evaluator.prepare import Text
from evaluator.versions import PACKAGES, versions

FIELDS = (
    *(*PACKAGES, "group", "model", "weights", "data", "tokenizer", "ids"),
    *("scoring", "numerics", "plan"),
)
"""Compared in this order: the first that differs is the cause of what follows."""


def identity(
    text: Text, model_digest: str | None, weights_digest: str, group: GroupShape
) -> dict[str, object]:
    """What must be equal on all ranks; without the model where another rank read it.

    Args:
        text: What is scored.
        model_digest: Of the files.
        weights_digest: Of the weights in memory, which may differ from the files.
        group: Of all scoring groups.
    """
    facts: dict[str, object] = {
        # Another python computes the same; the result warns of it.
        **{name: versions()[name] for name in PACKAGES},
        "group": group.model_dump(),
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


def agree(
    peers: Peers, rank: RankInfo, mine: dict[str, object], twin: int = 0
) -> dict[str, object]:
    """Compare with rank 0, and the weights with the rank that should have the same.

    Args:
        peers: All ranks; all of them call it.
        rank: This one.
        mine: Its `identity`.
        twin: The lowest rank that has the same part of the weights; maybe this one itself.

    Returns:
        What rank 0 has, which is all of `FIELDS`.

    Raises:
        PlanMismatch: It names ranks and field.
    """
    if rank.rank == twin:
        peers.publish(f"identity/{twin}", json.dumps(mine))
    by_owner = {
        owner: mine if owner == rank.rank else _identity_of(owner, peers) for owner in (0, twin)
    }
    for field in FIELDS:
        owner = twin if field == "weights" else 0
        theirs = by_owner[owner]
        if field in mine and mine[field] != theirs[field]:
            msg = (
                f"rank {rank.rank} (node {rank.node_rank}) and rank {owner} differ in {field}: "
                f"{mine[field]} and {theirs[field]}; give all nodes the same files and versions"
            )
            raise PlanMismatch(msg)
    return by_owner[0]


def _identity_of(owner: int, peers: Peers) -> dict[str, object]:
    theirs: dict[str, object] = json.loads(peers.read(f"identity/{owner}", owner))
    return theirs


def check_finished(
    spec: LaunchSpec, plan_digest: str, model_digest: str, group: GroupShape
) -> None:
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
                f"{found[field]}: data, tokenizer, model, library or evaluator changed; put the "
                f"old ones back and retry, or start a new job"
            )
            raise PlanMismatch(msg)
    if spec.finished_group not in (None, group):
        msg = (
            f"the finished batches were scored by scoring groups of {spec.finished_group}, but now "
            f"these are {group}, which changes last bits; start a new job"
        )
        raise PlanMismatch(msg)
