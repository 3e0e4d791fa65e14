"""A scoring group: the ranks that score each batch together, and this rank's place in it.

Ranks of a group are neighbours, tensor parallel ones the closest: they talk most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from evaluator.contract.parallelism import ParallelismUsed
from evaluator.exchange.ranks import RankInfo

T = TypeVar("T")

DIMENSIONS = ("dp_replicate", "dp_shard", "cp", "tp")
"""Of the mesh, outermost first."""
NO_LEASE = range(0)


@dataclass(frozen=True, kw_only=True)
class Place:
    """This rank along one dimension of its group, and how to reach the others on it."""

    index: int = 0
    count: int = 1
    group: Any = None
    """A process group; None where the rank is alone."""

    def bounds(self, size: int) -> tuple[int, int]:
        """Begin and end of this rank's part of `size` things; parts differ by at most one."""
        return bounds(size, self.index, self.count)

    def sizes(self, size: int) -> list[int]:
        """How many of `size` things each rank has."""
        ends = [bounds(size, index, self.count) for index in range(self.count)]
        return [end - begin for begin, end in ends]

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place."""
        dist.all_reduce(values, group=self.group)
        return values

    def gather(self, part: torch.Tensor, sizes: list[int], dim: int) -> torch.Tensor:
        """Join the parts of all ranks along `dim`.

        Args:
            part: Of this rank.
            sizes: Length of each rank's part along `dim`.
            dim: Where they are joined.
        """
        if self.count == 1:
            return part
        longest = max(sizes)
        # Collectives want equal sizes: shorter parts are filled up, and cut again on arrival.
        moved = part.movedim(dim, 0)
        padded = moved.new_zeros(longest, *moved.shape[1:])
        padded[: len(moved)] = moved
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.group)
        whole = torch.cat([other[:size] for other, size in zip(parts, sizes, strict=True)])
        return whole.movedim(0, dim)


def bounds(size: int, index: int, count: int) -> tuple[int, int]:
    """Part `index` of `count` parts of `size` things."""
    return size * index // count, size * (index + 1) // count


ALONE = Place()


@dataclass(frozen=True, kw_only=True)
class ScoringGroup:
    """This rank's group; of one rank unless the parallelism says otherwise."""

    used: ParallelismUsed = field(default_factory=ParallelismUsed)
    rank: int = 0
    """Among all ranks."""
    mesh: DeviceMesh | None = None
    dp_shard: Place = ALONE
    tp: Place = ALONE
    cp: Place = ALONE
    vocabulary: Place = ALONE
    """Over `dp_shard` and `tp`: both hold a part of the embedding and of the head."""
    everyone: Place = ALONE
    """Over all ranks of the group."""

    @property
    def has_several(self) -> bool:
        """True where several ranks score together."""
        return self.used.num_ranks > 1

    @property
    def number(self) -> int:
        """Of this group among the groups."""
        return self.number_of(self.rank)

    def number_of(self, rank: int) -> int:
        """Of the group that a rank belongs to."""
        return rank // self.used.num_ranks

    def ranks_from(self, first: int) -> range:
        """Of the group whose first rank this is."""
        return range(first, first + self.used.num_ranks)

    @property
    def others(self) -> list[int]:
        """The other ranks of this group."""
        ranks = self.ranks_from(self.number * self.used.num_ranks)
        return [rank for rank in ranks if rank != self.rank]

    @property
    def leads(self) -> bool:
        """True on the rank that draws leases, and keeps and reports what the group has scored."""
        return self.rank % self.used.num_ranks == 0

    @property
    def splits_weights(self) -> bool:
        """True where no rank has the whole model."""
        return self.vocabulary.count > 1

    @property
    def twin(self) -> int:
        """The lowest rank that has the same weights as this one."""
        if not self.splits_weights:
            return 0
        return self.dp_shard.index * self.cp.count * self.tp.count + self.tp.index

    def speakers(self, values: Sequence[T]) -> list[T]:
        """Of the values of all ranks those of each group's first rank, by group."""
        return list(values[:: self.used.num_ranks])

    def told(self, leases: Iterator[range]) -> Iterator[range]:
        """The leases of this group: its first rank draws them, the others are told.

        Args:
            leases: Of the first rank; those of others are left alone.
        """
        if not self.has_several:
            yield from leases
            return
        while True:
            lease = next(leases, NO_LEASE) if self.leads else NO_LEASE
            begin, end = self._sum([lease.start, lease.stop])
            if begin == end:
                return
            yield range(begin, end)

    def all_say(self, *, yes: bool) -> bool:
        """Whether all ranks of this group say yes; all of them ask together."""
        return self._sum([int(not yes)]) == [0] if self.has_several else yes

    def _sum(self, numbers: list[int]) -> list[int]:
        assert self.mesh is not None, "a group of several ranks has a mesh"
        values = torch.tensor(numbers, device=self.mesh.device_type)
        summed: list[int] = self.everyone.sum_(values).tolist()
        return summed


SINGLE = ScoringGroup()


def form(used: ParallelismUsed, rank: RankInfo, device: torch.device) -> ScoringGroup:
    """Build the mesh and take this rank's place in it; all ranks together.

    Args:
        used: Its product is the world size.
        rank: This process.
        device: Of this rank.
    """
    if used.num_ranks == 1:
        return ScoringGroup(used=used, rank=rank.rank)
    lengths = tuple(int(getattr(used, name)) for name in DIMENSIONS)
    mesh = init_device_mesh(device.type, lengths, mesh_dim_names=DIMENSIONS)
    dp_shard, tp, cp = (_place(mesh[name]) for name in ("dp_shard", "tp", "cp"))
    both = mesh["dp_shard", "tp"]._flatten("vocabulary")
    everyone = mesh["dp_shard", "cp", "tp"]._flatten("everyone")
    return ScoringGroup(
        used=used,
        rank=rank.rank,
        mesh=mesh,
        dp_shard=dp_shard,
        tp=tp,
        cp=cp,
        vocabulary=_place(both),
        everyone=_place(everyone),
    )


def _place(mesh: DeviceMesh) -> Place:
    return Place(index=mesh.get_local_rank(), count=mesh.size(), group=mesh.get_group())
