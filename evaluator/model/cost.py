"""What a model's forward costs, from its weights alone: matrix products, and bytes of weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn
from transformers.pytorch_utils import Conv1D

from evaluator.contract.efficiency import Work

COUNTED_LAYERS = frozenset({"full_attention", "sliding_attention"})
ROUTED = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names in a config for experts of which a token takes part."""


class Unknown(NamedTuple):
    """Why a cost is not known: a guess would be worse than none."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What forwards were given. Adds up."""

    num_forwards: int = 0
    num_tokens: int = 0
    num_pairs: int = 0
    """Of tokens of one window, each with each: the square of its inputs."""
    num_slices: int = 0
    """Times that the head ran."""
    num_positions: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __sub__(self, earlier: "Counts") -> "Counts":
        """What came since."""
        return Counts(
            **{name: value - getattr(earlier, name) for name, value in vars(self).items()}
        )


class Counter:
    """Counts of all forwards so far, and those of them that were for the figure."""

    def __init__(self) -> None:
        self._all = Counts()
        self.kept = Counts()
        """Those inside `keeping`."""

    def saw_forward(self, num_windows: int, num_inputs: int) -> None:
        """The body has run on so many windows of so many inputs."""
        num_tokens = num_windows * num_inputs
        self._all += Counts(
            num_forwards=1, num_tokens=num_tokens, num_pairs=num_tokens * num_inputs
        )

    def saw_slice(self, num_positions: int) -> None:
        """The head has run on so many positions."""
        self._all += Counts(num_slices=1, num_positions=num_positions)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While inside, what is computed is for the figure; the audit's is not."""
        before = self._all
        yield
        self.kept += self._all - before


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Floating point operations of matrix products, and bytes of their weights.

    Source: 2 N + 4 L H Q T operations a token, in A. Chowdhery et al., PaLM, 2022, appendix B, of
    which the forward is a third; embeddings take no product, the head counts by position.
    """

    per_token: int
    """2 x weights of the body's matrices."""
    per_pair: int
    """4 x layers x heads x width of a head: scores, and their product with the values. All pairs
    count, though of a causal model half of them is masked."""
    per_position: int
    """2 x weights of the head."""
    body_bytes: int
    head_bytes: int

    def operations(self, counts: Counts) -> float:
        """Of forwards."""
        return float(
            self.per_token * counts.num_tokens
            + self.per_pair * counts.num_pairs
            + self.per_position * counts.num_positions
        )

    def weight_bytes(self, counts: Counts) -> float:
        """Bytes read at least: the body's matrices by each forward, the head's by each slice."""
        return float(self.body_bytes * counts.num_forwards + self.head_bytes * counts.num_slices)


def why_unknown(cost: Cost | Unknown) -> str | None:
    """Why operations are not counted; None where they are."""
    return cost.why if isinstance(cost, Unknown) else None


def work_of(counts: Counts, cost: Cost | Unknown) -> Work:
    """What is told of the counts."""
    known = cost if isinstance(cost, Cost) else None
    return Work(
        num_forwards=counts.num_forwards,
        num_fed_tokens=counts.num_tokens,
        num_head_positions=counts.num_positions,
        operations=known.operations(counts) if known else None,
        weight_bytes=known.weight_bytes(counts) if known else None,
    )


def model_cost(model: Any) -> Cost | Unknown:
    """The cost of a whole model that is not packed yet."""
    config = model.config.get_text_config()
    if (why := _strange(config)) is not None:
        return Unknown(f"{type(model).__name__} {why}")
    head, body = model.get_output_embeddings(), []
    for name, module in model.named_modules():
        matrices = [weight for weight in module.parameters(recurse=False) if weight.ndim > 1]
        if module is head or isinstance(module, nn.Embedding) or not matrices:
            continue
        if not isinstance(module, nn.Linear | Conv1D):
            kind = type(module).__name__
            return Unknown(f"{type(model).__name__} has {name}, a {kind}, whose cost is not known")
        body += matrices
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Cost(
        per_token=2 * sum(weight.numel() for weight in body),
        per_pair=4 * config.num_hidden_layers * heads * width,
        per_position=2 * head.weight.numel(),
        body_bytes=sum(weight.nbytes for weight in body),
        head_bytes=head.weight.nbytes,
    )


def _strange(config: Any) -> str | None:
    """What the formula does not hold for; None where it does."""
    if any((getattr(config, name, None) or 1) > 1 for name in ROUTED):
        return "routes tokens to experts"
    if getattr(config, "kv_lora_rank", None):
        return "has keys and values of other widths"
    if set(getattr(config, "layer_types", None) or ()) - COUNTED_LAYERS:
        return "has layers that are no attention"
    numbers = "num_attention_heads", "num_hidden_layers", "hidden_size"
    if not all(isinstance(getattr(config, name, None), int) for name in numbers):
        return "does not say its heads, layers and width"
    return None
