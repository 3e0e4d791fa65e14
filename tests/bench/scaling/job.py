"""What is simulated: the work, the ranks, and what things cost."""

import random
from dataclasses import dataclass
from functools import cached_property

from evaluator.contract.launch import Scheduling
from evaluator.exchange.hierarchy import NodeLayout
from evaluator.planning.plan import Batch, Plan
from evaluator.planning.windows import Window
from evaluator.scheduling.schedule import Work
from tests.bench.scaling.network import Link


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What things take, measured or stated; docs/scaling.md says which is which."""

    seconds_per_token: float
    """Of an input token, on a rank of usual speed."""
    spread: tuple[float, ...] = (1.0,)
    """Times of single batches over their mean; each batch gets one of them."""
    inside: Link
    """Between ranks of a node."""
    between: Link
    """Between nodes, and between all ranks and the store."""
    store_service_s: float
    """Of one request, at the store."""
    loads_bytes_per_s: float
    """How fast a leader reads ledger entries that have come."""
    result_s_per_batch: float
    """Of what rank 0 does alone at the end."""
    restart_s: float
    """From the death of a node to the first lease of the next attempt."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """An evaluation of windows of equal length."""

    num_nodes: int
    ranks_per_node: int
    num_batches: int
    scheduling: Scheduling
    windows_per_batch: int = 4
    window: int = 512
    seed: int = 0

    @property
    def num_ranks(self) -> int:
        """Of all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def layout(self) -> NodeLayout:
        """Ranks by node."""
        return NodeLayout.even(self.num_nodes, self.ranks_per_node)

    @cached_property
    def plan(self) -> Plan:
        """Only the last token of a window is scored, so that simulating it costs little."""
        windows = [
            Window(number, 0, self.window, self.window - 1, prefixed=True)
            for number in range(self.num_batches * self.windows_per_batch)
        ]
        size = self.windows_per_batch
        return Plan(
            tuple(
                Batch(index, tuple(windows[index * size : (index + 1) * size]))
                for index in range(self.num_batches)
            ),
            b"simulated",
        )

    def spread(self, costs: Costs) -> list[float]:
        """Time of each batch over the mean."""
        return random.Random(self.seed).choices(costs.spread, k=self.num_batches)

    def ideal_s(self, costs: Costs, slowness: tuple[float, ...]) -> float:
        """The work over the sum of all ranks' speeds: nobody ever waits, nothing costs anything.

        Args:
            costs: Of which the time of batches counts only.
            slowness: By rank; 3 takes three times as long.
        """
        tokens = self.plan.batches[0].num_input_tokens if self.num_batches else 0
        work_s = sum(self.spread(costs)) * tokens * costs.seconds_per_token
        return work_s / sum(1 / each for each in slowness)

    def unfinished(self, finished: set[int]) -> Work:
        """What the next attempt has to do."""
        return Work.of(self.plan, (n for n in range(self.num_batches) if n not in finished))


@dataclass(frozen=True, kw_only=True)
class Unevenness:
    """How nodes differ."""

    sigma: float = 0.0
    """Of the logarithm of their slowness."""
    slow_share: float = 0.0
    """Nodes that are slower still; at least one where this is above 0."""
    slow_factor: float = 3.0

    def slowness(self, job: Job) -> tuple[float, ...]:
        """By rank; all ranks of a node are alike."""
        generator = random.Random(job.seed + 1)
        by_node = [generator.lognormvariate(0, self.sigma) for _ in range(job.num_nodes)]
        num_slow = max(1, round(self.slow_share * job.num_nodes)) if self.slow_share else 0
        for node in generator.sample(range(job.num_nodes), num_slow):
            by_node[node] *= self.slow_factor
        return tuple(each for each in by_node for _ in range(job.ranks_per_node))
