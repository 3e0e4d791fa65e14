"""How the ranks of a launch share a model and its windows. Both sides need the arithmetic.

The names are those of `ParallelDims` in pytorch/torchtitan.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from evaluator.contract.base import Contract, PositiveCount

REST = -1
"""As many as the ranks leave for it."""

Ways = Annotated[int, Field(strict=True, ge=REST, le=2**16)]
"""Number of parts, at least 1, or -1 for the rest."""


class Parallelism(Contract):
    """Ranks by what they share; the product is the number of ranks. Meanings: docs/parallelism.md.

    A *scoring group* is what is not `dp_replicate`: ranks that score each batch together.
    """

    dp_replicate: Ways = REST
    """Scoring groups; each takes batches of its own."""
    dp_shard: Ways = 1
    """Ranks that hold a part of the weights each, and fetch the others' layer by layer."""
    tp: Ways = 1
    """Ranks that compute a part of each layer: some heads, some of the inner width."""
    cp: Ways = 1
    """Ranks that compute a part of each window's positions."""

    @model_validator(mode="before")
    @classmethod
    def _rest_goes_where_asked(cls, data: Any) -> Any:
        """The rest goes to `dp_replicate` only where nothing else asks for it."""
        if isinstance(data, dict) and "dp_replicate" not in data and REST in data.values():
            return {"dp_replicate": 1, **data}
        return data

    @model_validator(mode="after")
    def _numbers_make_sense(self) -> "Parallelism":
        numbers = self.model_dump()
        zero = [name for name, ways in numbers.items() if ways == 0]
        if zero:
            msg = f"{zero[0]} is 0; it must be at least 1, or -1 for the rest"
            raise ValueError(msg)
        rest = [name for name, ways in numbers.items() if ways == REST]
        if len(rest) > 1:
            msg = f"{' and '.join(rest)} are -1; the rest can go to one of them only"
            raise ValueError(msg)
        return self


def _form(value: object) -> str:
    return "auto" if isinstance(value, str) else "ways"


AnyParallelism = Annotated[
    Annotated[Parallelism, Tag("ways")] | Annotated[Literal["auto"], Tag("auto")],
    # So that what is wrong with one form is not told as not being the other too.
    Discriminator(_form),
]
"""`auto` chooses from model size, memory and ranks; the result says what and why."""


class GroupShape(Contract):
    """Ranks of one scoring group, by what they share. Decides a figure's last bits."""

    dp_shard: PositiveCount = 1
    tp: PositiveCount = 1
    cp: PositiveCount = 1

    @property
    def num_ranks(self) -> int:
        """In one group."""
        return self.dp_shard * self.tp * self.cp


class ParallelismUsed(GroupShape):
    """The parallelism of a run, nothing left open."""

    dp_replicate: PositiveCount = 1
    reason: str = ""
    """Why `auto` chose it; empty where it was asked for."""

    @property
    def shape(self) -> GroupShape:
        """What all groups have in common."""
        return GroupShape(dp_shard=self.dp_shard, tp=self.tp, cp=self.cp)


def resolve(asked: Parallelism, num_ranks: int) -> ParallelismUsed:
    """Fill in the rest.

    Raises:
        ValueError: The product is not the number of ranks; it names the numbers.
    """
    numbers: dict[str, int] = asked.model_dump()
    open_names = [name for name, ways in numbers.items() if ways == REST]
    given = {name: ways for name, ways in numbers.items() if ways != REST}
    product = math.prod(given.values())
    shown = " x ".join(f"{name} {ways}" for name, ways in given.items())
    if open_names:
        if num_ranks % product:
            msg = (
                f"{shown} is {product}, which does not divide {num_ranks} ranks: nothing whole is "
                f"left for {open_names[0]}"
            )
            raise ValueError(msg)
        numbers[open_names[0]] = num_ranks // product
    elif product != num_ranks:
        msg = f"{shown} is {product}, but there are {num_ranks} ranks (nodes x ranks_per_node)"
        raise ValueError(msg)
    return ParallelismUsed.model_validate(numbers)
