"""How a group comes to its leases: cut beforehand, of even size, or as large as its speed. Pure."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evaluator.contract.launch import Scheduling
from evaluator.planning.plan import Batch, Plan
from evaluator.scheduling.lease import Take, cumulate, draw_leases, static_lease
from evaluator.scheduling.speed import SharedSpeed, SpeedModel


@dataclass(frozen=True)
class Work:
    """Batches that are to be scored, the same on every rank that takes part."""

    batches: Sequence[Batch]

    @classmethod
    def of(cls, plan: Plan, indices: Iterable[int]) -> "Work":
        """Some batches of a plan."""
        return cls([plan.batches[index] for index in indices])

    @cached_property
    def before(self) -> list[int]:
        """Input tokens before each position, and of all."""
        return cumulate(batch.num_input_tokens for batch in self.batches)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One group's side of the scheduling that was asked for. Changes no number, only who scores."""

    scheduling: Scheduling
    group: int
    """Number of this scoring group."""
    shared: SharedSpeed
    speed: SpeedModel = field(default_factory=SpeedModel)

    def leases(self, work: Work, groups: Collection[int], take: Take) -> Iterator[range]:
        """Leases of this group, as positions in the work.

        Args:
            work: What there is to score.
            groups: That take part, by number; this one is among them.
            take: The counter that they share.
        """
        if self.scheduling == "static":
            lease = static_lease(work.before, len(groups), sorted(groups).index(self.group))
            return iter([lease] if lease else [])
        if self.scheduling == "dynamic":
            return draw_leases(work.before, take, lambda _: 1 / len(groups))
        # Those who are counted in the shared speed must be those who draw.
        may_leave = len(groups) == self.shared.num_ranks

        def share(position: int) -> float | None:
            batch = work.batches[position]
            part = self.shared.share(self.speed.seconds_per_token(batch.num_inputs))
            rest = work.before[-1] - work.before[position]
            is_left = may_leave and self.shared.leave(batch.num_input_tokens, rest)
            return None if is_left else part

        return draw_leases(work.before, take, share)

    def expected_s(self, batch: Batch) -> float | None:
        """Seconds that this group should take for a batch; None before the first."""
        found = self.speed.seconds_per_token(batch.num_inputs)
        return None if found is None else found * batch.num_input_tokens
