"""How a group comes to its leases: cut beforehand, of even size, or as large as its speed. Pure."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from evaluator.contract.launch import Scheduling
from evaluator.lease import Take, cumulate, draw_leases, static_lease
from evaluator.plan import Batch
from evaluator.speed import SharedSpeed, SpeedModel


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One group's side of the scheduling that was asked for. Changes no number, only who scores."""

    scheduling: Scheduling
    group: int
    """Number of this scoring group."""
    shared: SharedSpeed
    speed: SpeedModel = field(default_factory=SpeedModel)

    def leases(
        self, batches: Sequence[Batch], groups: Collection[int], take: Take
    ) -> Iterator[range]:
        """Leases of this group, as positions in `batches`.

        Args:
            batches: That are to be scored, the same for every group that takes part.
            groups: That take part, by number; this one is among them.
            take: The counter that they share.
        """
        before = cumulate(batch.num_input_tokens for batch in batches)
        if self.scheduling == "static":
            lease = static_lease(before, len(groups), sorted(groups).index(self.group))
            return iter([lease] if lease else [])
        share: Callable[[int], float] = lambda _: 1 / len(groups)  # noqa: E731
        if self.scheduling == "predictive":
            share = lambda position: self.shared.share(  # noqa: E731
                self.speed.seconds_per_token(batches[position].num_inputs)
            )
        return draw_leases(before, take, share)

    def expected_s(self, batch: Batch) -> float | None:
        """Seconds that this group should take for a batch; None before the first."""
        found = self.speed.seconds_per_token(batch.num_inputs)
        return None if found is None else found * batch.num_input_tokens
