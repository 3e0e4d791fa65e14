"""How a rank comes to its leases: cut beforehand, of even size, or as large as its speed. Pure."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from evaluator.contract.launch import Scheduling
from evaluator.lease import Take, cumulate, draw_leases, static_lease
from evaluator.plan import Batch
from evaluator.speed import SharedSpeed, SpeedModel


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One rank's side of the scheduling that was asked for. Changes no number, only who scores."""

    scheduling: Scheduling
    rank: int
    shared: SharedSpeed
    speed: SpeedModel = field(default_factory=SpeedModel)

    def leases(
        self, batches: Sequence[Batch], ranks: Collection[int], take: Take
    ) -> Iterator[range]:
        """Leases of this rank, as positions in `batches`.

        Args:
            batches: That are to be scored, the same on every rank that takes part.
            ranks: That take part; this one is among them.
            take: The counter that they share.
        """
        before = cumulate(batch.num_input_tokens for batch in batches)
        if self.scheduling == "static":
            lease = static_lease(before, len(ranks), sorted(ranks).index(self.rank))
            return iter([lease] if lease else [])
        share: Callable[[int], float] = lambda _: 1 / len(ranks)  # noqa: E731
        if self.scheduling == "predictive":
            share = lambda position: self.shared.share(  # noqa: E731
                self.speed.seconds_per_token(batches[position].num_inputs)
            )
        return draw_leases(before, take, share)

    def expected_s(self, batch: Batch) -> float | None:
        """Seconds that this rank should take for a batch; None before the first."""
        found = self.speed.seconds_per_token(batch.num_inputs)
        return None if found is None else found * batch.num_input_tokens
