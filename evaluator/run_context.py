"""What every part of one rank's run needs."""

from dataclasses import dataclass
from pathlib import Path

import torch

from evaluator.contract.launch import LaunchSpec
from evaluator.exchange.process_group import Peers
from evaluator.exchange.ranks import RankInfo
from evaluator.reporting.narrator import Narrator
from evaluator.reporting.timing import RankClock


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """One rank's run: what was asked for, where it runs, whom it talks to."""

    spec: LaunchSpec
    rank: RankInfo
    clock: RankClock
    narrator: Narrator
    run_dir: Path
    peers: Peers
    device: torch.device

    @property
    def keeps_tokens(self) -> bool:
        """Whether the nll of every token was asked for."""
        return self.spec.outputs.token_nll != "none"  # noqa: S105 - tokens of a text
