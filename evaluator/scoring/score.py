"""The loss of a batch: the body for whole windows, then head and loss window by window in slices.

Shapes: B windows, T inputs, D width, P positions of a slice, V vocabulary, S scored tokens.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evaluator.errors import LossNotFinite
from evaluator.model.cost import Counter
from evaluator.model.forward import Forward
from evaluator.parallel.group import ALONE, Place
from evaluator.planning.plan import Batch
from evaluator.planning.windows import Window
from evaluator.text.tokens import Ids, TokenDocument

CACHED_VALUES = 1 << 18
"""float32 values that a core's cache holds with room to spare. Changes no bit: rows stand alone."""


def token_nll(logits_PV: Tensor, targets_P: Tensor) -> Tensor:
    """Negative log likelihood of each target, logsumexp(logits) minus the target's logit.

    The exponentials are float32 and summed in float32 by torch's pairwise sum; the rest is float64.
    `log_softmax` and `cross_entropy` are left out on purpose: on CPU they accumulate an error of
    one sign, 7.7e-6 nats a token at 49 152 words.

    Args:
        logits_PV: [P, V], any float type; float32 logits are overwritten.
        targets_P: [P], int64.

    Returns:
        [P], float64, in nats.
    """
    target_P = logits_PV.gather(-1, targets_P[:, None]).squeeze(-1).double()
    return log_sum_exp(logits_PV) - target_P


def log_sum_exp(logits_PV: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials of each row, float64; float32 is overwritten."""
    parts = logits_PV.split(_num_rows_at_once(logits_PV))
    return torch.cat([_log_sum_exp(part_PV) for part_PV in parts])


def _log_sum_exp(logits_PV: Tensor) -> Tensor:
    if len(logits_PV) == 1:
        # torch splits the sum of a single row among its threads, but gives whole rows to each.
        return _log_sum_exp(logits_PV.expand(2, -1).contiguous())[:1]
    logits_PV = logits_PV.float()
    top_P = logits_PV.amax(-1)
    total_P = logits_PV.sub_(top_P[:, None]).exp_().sum(-1)
    return total_P.double().log() + top_P.double()


def _num_rows_at_once(logits_PV: Tensor) -> int:
    """On a CPU few rows, which stay in its cache from one pass over them to the next.

    At least two: a single one is computed twice.
    """
    num_rows, vocabulary_size = logits_PV.shape
    return max(2, CACHED_VALUES // vocabulary_size) if logits_PV.device.type == "cpu" else num_rows


class WindowSums(NamedTuple):
    """Over the scored tokens of each window of a batch; exactly rounded sums of float64."""

    nll_nats: tuple[float, ...]
    nll_squares: tuple[float, ...]


TokenNll = NDArray[np.float64]
"""Of the scored tokens of one window, in nats."""


def sum_windows(nll_by_window: Sequence[TokenNll]) -> WindowSums:
    """Sums of the scored tokens' nll, and of their squares, per window."""
    # torch splits long sums among its threads, which rounds in another order.
    return WindowSums(
        tuple(math.fsum(nll_S.tolist()) for nll_S in nll_by_window),
        tuple(math.fsum(np.square(nll_S).tolist()) for nll_S in nll_by_window),
    )


class Loss(Protocol):
    """From logits, or this rank's columns of them, to the nll of each target."""

    def __call__(self, logits_PV: Tensor, targets_P: Tensor) -> Tensor:
        """[P], float64, in nats; as `token_nll`."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Scores batches of one plan."""

    forward: Forward
    documents: dict[int, TokenDocument]
    """By index in the data set."""
    prefix_token_id: int | None
    device: torch.device
    dtype: str
    """For messages."""
    loss: Loss = token_nll
    cp: Place = ALONE
    """Ranks that share the positions of a window."""
    counter: Counter = field(default_factory=Counter)

    @torch.inference_mode()
    def score(self, batch: Batch) -> list[TokenNll]:
        """The nll of the scored tokens of each window.

        Raises:
            LossNotFinite: It names document and token.
        """
        parts = [
            self._window_nll(hidden_TD, window)
            for hidden_TD, window in zip(self._hidden(batch), batch.windows, strict=True)
        ]
        flat: TokenNll = torch.cat(parts).cpu().numpy()
        nll_by_window: list[TokenNll] = np.split(flat, np.cumsum(batch.num_scored)[:-1])
        if not np.isfinite(flat).all():
            raise self._not_finite(batch, nll_by_window)
        return nll_by_window

    def _hidden(self, batch: Batch) -> Iterator[Tensor]:
        """Last hidden states [T, D] of each window.

        On a CPU windows go through the body one by one: there the number of rows of a matrix
        decides how its product is rounded, so a short window would depend on its company. It
        costs nothing at 512 inputs, a quarter at 128, and twice the time at 32.
        """
        inputs_BT = torch.from_numpy(np.stack([self._inputs(window) for window in batch.windows]))
        inputs_BT = inputs_BT.to(self.device)
        parts = inputs_BT.split(1) if self.device.type == "cpu" else (inputs_BT,)
        for part_BT in parts:
            hidden_BTD = self.forward.hidden(part_BT)
            self.counter.saw_forward(*part_BT.shape)
            yield from hidden_BTD

    def _inputs(self, window: Window) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        ids = self._ids(window)[window.begin : window.end - 1].astype(np.int64)
        if not window.prefixed:
            return ids
        assert self.prefix_token_id is not None, "a prefixed window needs a prefix token"
        return np.concatenate([np.array([self.prefix_token_id], dtype=np.int64), ids])

    def _window_nll(self, hidden_TD: Tensor, window: Window) -> Tensor:
        targets = self._ids(window)[window.score_begin : window.end].astype(np.int64)
        targets_S = torch.from_numpy(targets).to(self.device)
        scored_SD = hidden_TD[window.first_scored_input :]
        begin, end = self.cp.bounds(len(targets_S))
        num_positions = self.forward.slice_positions
        slices = zip(
            scored_SD[begin:end].split(num_positions),
            targets_S[begin:end].split(num_positions),
            strict=True,
        )
        own = torch.cat([self.loss(self._logits(part_PD), part_P) for part_PD, part_P in slices])
        return self.cp.gather(own, self.cp.sizes(len(targets_S)), dim=0)

    def _logits(self, hidden_PD: Tensor) -> Tensor:
        logits_PV = self.forward.head(hidden_PD)
        self.counter.saw_slice(len(hidden_PD))
        return logits_PV

    def _ids(self, window: Window) -> Ids:
        return self.documents[window.document].ids

    def _not_finite(self, batch: Batch, nll_by_window: Sequence[TokenNll]) -> LossNotFinite:
        window, nll_S = next(
            (window, nll_S)
            for window, nll_S in zip(batch.windows, nll_by_window, strict=True)
            if not np.isfinite(nll_S).all()
        )
        first = int(np.flatnonzero(~np.isfinite(nll_S))[0])
        token = window.score_begin + first
        advice = (
            "check the weights"
            if self.dtype == "float32"
            else "take launch.dtype bfloat16 or float32"
        )
        return LossNotFinite(
            f"document {window.document} ({self.documents[window.document].place}), window of "
            f"tokens {window.begin} to {window.end}: the loss of token {token} is "
            f"{nll_S[first].item()} in {self.dtype}; {advice}"
        )
