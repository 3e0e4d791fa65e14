"""From window sums to the figure and its error. Definitions: docs/metrics.md.

Sums are exactly rounded (`math.fsum`), so they do not depend on who computed what in which order.
There is one division at the end, and never an average of averages.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, NamedTuple

from evaluator.contract.blocks import blocks_of, windows_per_block
from evaluator.contract.reports import Perplexity
from evaluator.contract.student_t import student_t_97_5

WORD_RULE = (
    r"pieces of the text, as it was before detokenising, split at runs of white space (\s+); "
    "an empty piece at either end counts too (lm-evaluation-harness)"
)


class ScoredWindow(NamedTuple):
    """What one window contributes."""

    document: int
    begin: int
    """First scored token of the document."""
    nll_nats: float
    nll_squares: float
    num_scored: int


@dataclass(frozen=True, kw_only=True)
class TextSize:
    """Size of the scored documents."""

    num_tokens: int
    num_bytes: int
    num_words: int
    num_documents: int
    excluded_documents: Mapping[str, int] = field(default_factory=dict)
    excluded_tokens: Mapping[str, int] = field(default_factory=dict)
    num_replaced: int = 0


class ClusterSum(NamedTuple):
    """Sum over one cluster."""

    nll_nats: float
    num_scored: int


def measure(windows: Sequence[ScoredWindow], size: TextSize) -> Perplexity:
    """Perplexity of the scored windows.

    Args:
        windows: All windows, at least one scored token among them.
        size: Of the documents that the windows belong to.

    Returns:
        The figure; what exceeds float64 is null, the mean is kept.
    """
    nll_sum_nats = math.fsum(window.nll_nats for window in windows)
    num_scored = sum(window.num_scored for window in windows)
    mean = nll_sum_nats / num_scored
    unit, clusters = cluster_sums(windows)
    block = windows_per_block(len(windows)) if unit == "blocks" else None
    error = clustered_standard_error(clusters)
    value = exp_or_none(mean)
    return Perplexity(
        token_perplexity=value,
        token_perplexity_standard_error=_scaled(value, error),
        token_perplexity_interval_95=_interval_95(mean, error, len(clusters)),
        mean_nll_nats=mean,
        mean_nll_standard_error=error,
        standard_error_clusters=unit,
        num_clusters=len(clusters),
        windows_per_block=block,
        naive_standard_error=naive_standard_error(windows),
        bits_per_byte=nll_sum_nats / (math.log(2) * size.num_bytes),
        byte_perplexity=exp_or_none(nll_sum_nats / size.num_bytes),
        word_perplexity=exp_or_none(nll_sum_nats / size.num_words) if size.num_words else None,
        word_rule=WORD_RULE,
        num_words=size.num_words,
        nll_sum_nats=nll_sum_nats,
        num_scored_tokens=num_scored,
        num_tokens=size.num_tokens,
        num_bytes=size.num_bytes,
        num_documents=size.num_documents,
        num_windows=len(windows),
        excluded_documents=dict(size.excluded_documents),
        excluded_tokens=dict(size.excluded_tokens),
        num_replaced=size.num_replaced,
    )


def cluster_sums(
    windows: Sequence[ScoredWindow],
) -> tuple[Literal["documents", "blocks"], list[ClusterSum]]:
    """Sums per document where there are at least two, else per block of consecutive windows.

    Tokens of one document depend on each other, so they must not be taken as independent; nor must
    neighbouring windows.
    """
    by_document: dict[int, list[ScoredWindow]] = {}
    for window in windows:
        by_document.setdefault(window.document, []).append(window)
    if len(by_document) < 2:
        in_text_order = sorted(windows, key=attrgetter("begin"))
        return "blocks", [_sum_of(block) for block in blocks_of(in_text_order)]
    return "documents", [_sum_of(members) for _, members in sorted(by_document.items())]


def _sum_of(windows: Sequence[ScoredWindow]) -> ClusterSum:
    return ClusterSum(
        math.fsum(window.nll_nats for window in windows),
        sum(window.num_scored for window in windows),
    )


def clustered_standard_error(clusters: Iterable[ClusterSum]) -> float | None:
    """Standard error of sum(nll) / sum(count) over clusters drawn at random.

    Returns:
        sqrt(C/(C-1) * sum((S_c - m * n_c)^2)) / N; None with fewer than two clusters.

    Source: the ratio estimator of W. G. Cochran, Sampling Techniques, 3rd ed. 1977, section 6.4,
    without the finite population correction.
    """
    clusters = list(clusters)
    if len(clusters) < 2:
        return None
    num_scored = sum(cluster.num_scored for cluster in clusters)
    mean = math.fsum(cluster.nll_nats for cluster in clusters) / num_scored
    squares = math.fsum((cluster.nll_nats - mean * cluster.num_scored) ** 2 for cluster in clusters)
    return math.sqrt(len(clusters) / (len(clusters) - 1) * squares) / num_scored


def naive_standard_error(windows: Sequence[ScoredWindow]) -> float | None:
    """Standard error of the mean nll as if tokens were drawn independently.

    Returns:
        sqrt((mean of squares - square of the mean) / (n - 1)); None with fewer than two tokens.

    Source: ggml-org/llama.cpp, tools/perplexity.
    """
    num_scored = sum(window.num_scored for window in windows)
    if num_scored < 2:
        return None
    mean = math.fsum(window.nll_nats for window in windows) / num_scored
    mean_square = math.fsum(window.nll_squares for window in windows) / num_scored
    # Equal values give a difference of rounding, on either side of zero.
    return math.sqrt(max(0.0, mean_square - mean**2) / (num_scored - 1))


def exp_or_none(exponent: float) -> float | None:
    """The exponential; None where that exceeds float64."""
    try:
        return math.exp(exponent)
    except OverflowError:
        return None


def _scaled(value: float | None, error: float | None) -> float | None:
    if value is None or error is None:
        return None
    scaled = value * error
    return scaled if math.isfinite(scaled) else None


def _interval_95(mean: float, error: float | None, num_clusters: int) -> tuple[float, float] | None:
    if error is None:
        return None
    reach = student_t_97_5(num_clusters - 1) * error
    low, high = exp_or_none(mean - reach), exp_or_none(mean + reach)
    return None if low is None or high is None else (low, high)
