"""Whether a candidate's text model is better than a baseline's, and how sure that is. Pure.

Two jobs are compared window by window or document by document, never by their two figures alone:
most of what makes a text hard is hard for both, and cancels. Formulas: docs/metrics.md.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, sub
from typing import Literal, NamedTuple

from app.errors import NotComparable
from app.jobs.distributions import sign_test
from app.jobs.windows import WindowTable
from evaluator.contract.blocks import blocks_of, windows_per_block
from evaluator.contract.reports import Result
from evaluator.contract.student_t import student_t_97_5

Measure = Literal["nats_per_token", "bits_per_byte"]
Unit = Literal["window", "document"]

_SHOWN = ("convention", "window", "stride", "prefix", "prefix_place", "tail")
_SHORT_DIGEST = len("sha256:") + 12


@dataclass(frozen=True)
class Side:
    """A job that succeeded."""

    result: Result
    windows: WindowTable


class Pair(NamedTuple):
    """The same piece of text under both jobs."""

    document: int
    baseline_nats: float
    candidate_nats: float
    size: int
    """Scored tokens, or bytes."""


class Difference(NamedTuple):
    """Something that the jobs do not share, and that does not keep them from being compared."""

    name: str
    baseline: str
    candidate: str


@dataclass(frozen=True)
class Pairing:
    """How the jobs are laid side by side; pairs in columns, in text order."""

    unit: Unit
    measure: Measure
    num_unpaired_documents: int
    document: "array[int]"
    baseline_nats: "array[float]"
    candidate_nats: "array[float]"
    size: "array[int]"

    def __len__(self) -> int:
        return len(self.document)

    def __iter__(self) -> Iterator[Pair]:
        columns = (self.document, self.baseline_nats, self.candidate_nats, self.size)
        return map(Pair._make, zip(*columns, strict=True))

    @property
    def difference_nats(self) -> Iterator[float]:
        """Of each pair."""
        return map(sub, self.candidate_nats, self.baseline_nats)


@dataclass(frozen=True)
class SignTest:
    """How many clusters moved which way."""

    wins: int
    losses: int
    ties: int
    p_value: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two jobs say about each other; meanings: `app.api.schemas.ComparisonView`."""

    unit: Unit
    measure: Measure
    num_pairs: int
    num_unpaired_documents: int
    clusters: Literal["documents", "blocks"]
    num_clusters: int
    windows_per_block: int | None
    denominator: int
    baseline: float
    candidate: float
    difference: float
    standard_error: float | None
    interval_95: tuple[float, float] | None
    perplexity_ratio: float | None
    perplexity_ratio_interval_95: tuple[float, float] | None
    wins: int
    losses: int
    ties: int
    sign_test: SignTest
    differs: list[Difference]
    sentence: str


def compare(baseline: Side, candidate: Side) -> Comparison:
    """Compare two jobs over the text that both have scored.

    Raises:
        NotComparable: They scored other texts, or other parts of the text.
    """
    pairing = pair(baseline, candidate)
    return summarise(pairing, differences(baseline.result, candidate.result))


def pair(baseline: Side, candidate: Side) -> Pairing:
    """Lay both jobs side by side, in the smallest pieces that they share.

    Raises:
        NotComparable: It names what differs.
    """
    _check_text(baseline.result, candidate.result)
    if baseline.result.tokenizer_digest != candidate.result.tokenizer_digest:
        _check_every_token_counts(baseline.result, candidate.result)
        return _pair_documents(baseline.windows, candidate.windows, "bits_per_byte")
    one, other = baseline.windows, candidate.windows
    if not one.same_windows(other):
        return _pair_documents(one, other, "nats_per_token")
    columns = one.document, one.nll_nats, other.nll_nats, one.num_scored
    return Pairing("window", "nats_per_token", 0, *columns)


def _check_text(one: Result, other: Result) -> None:
    """Refuse where the scored text is not the same."""
    for name, first, second in (
        ("data digest", one.data_digest, other.data_digest),
        ("scoring.special_tokens", one.scoring.special_tokens, other.scoring.special_tokens),
        ("scoring.join", one.scoring.join, other.scoring.join),
    ):
        if first != second:
            msg = (
                f"the jobs scored different texts: {name} is {first!r} for the baseline and "
                f"{second!r} for the candidate; run both with the same data and text options"
            )
            raise NotComparable(msg)


def _check_every_token_counts(*results: Result) -> None:
    """Refuse bits per byte where bytes are counted whose tokens were not scored."""
    for name, result in zip(("baseline", "candidate"), results, strict=True):
        num_left_out = sum(result.perplexity.excluded_tokens.values())
        if num_left_out:
            msg = (
                f"the tokenizers differ, so only bits per byte can be compared, but the {name} "
                f"left {num_left_out} tokens unscored whose bytes count: run both with "
                "scoring.convention lm-eval and a prefix token, which scores every token"
            )
            raise NotComparable(msg)


class _Document(NamedTuple):
    nll_nats: float
    num_scored: int
    num_bytes: int


def _documents(windows: WindowTable) -> dict[int, _Document]:
    return {
        document: _Document(
            math.fsum(window.nll_nats for window in some),
            sum(window.num_scored for window in some),
            sum(window.num_bytes for window in some),
        )
        for document, some in windows.by_document()
    }


def _pair_documents(one: WindowTable, other: WindowTable, measure: Measure) -> Pairing:
    """Pair documents that both have scored.

    Raises:
        NotComparable: A document has another size in one of them, or they share none.
    """
    first, second = _documents(one), _documents(other)
    by_tokens = measure == "nats_per_token"
    shared = sorted(first.keys() & second.keys())
    if not shared:
        msg = "the jobs have no scored document in common: look at excluded_documents of both"
        raise NotComparable(msg)
    unpaired = len(first.keys() ^ second.keys())
    columns = array("q"), array("d"), array("d"), array("q")
    pairing = Pairing("document", measure, unpaired, *columns)
    for document in shared:
        a, b = first[document], second[document]
        sizes = (a.num_scored, b.num_scored) if by_tokens else (a.num_bytes, b.num_bytes)
        if sizes[0] != sizes[1] or not sizes[0]:
            noun = "scored tokens" if by_tokens else "bytes"
            msg = (
                f"the jobs scored different parts of the text: document {document} has {sizes[0]} "
                f"{noun} in the baseline and {sizes[1]} in the candidate; run both with the same "
                "scoring"
            )
            raise NotComparable(msg)
        pairing.document.append(document)
        pairing.baseline_nats.append(a.nll_nats)
        pairing.candidate_nats.append(b.nll_nats)
        pairing.size.append(sizes[0])
    return pairing


def differences(one: Result, other: Result) -> list[Difference]:
    """Name what the jobs do not share, for the reader to judge."""
    shown = {
        "model": (one.model_digest[:_SHORT_DIGEST], other.model_digest[:_SHORT_DIGEST]),
        "tokenizer": (one.tokenizer_digest[:_SHORT_DIGEST], other.tokenizer_digest[:_SHORT_DIGEST]),
        "device": (one.device, other.device),
        "dtype": (one.dtype, other.dtype),
        "group": (str(one.parallelism.shape), str(other.parallelism.shape)),
    }
    for name in _SHOWN:
        values = getattr(one.scoring, name), getattr(other.scoring, name)
        shown[f"scoring.{name}"] = str(values[0]), str(values[1])
    return [Difference(name, *values) for name, values in shown.items() if values[0] != values[1]]


def summarise(pairing: Pairing, differs: Sequence[Difference] = ()) -> Comparison:
    """Compute the mean difference, its error and the sign test.

    Args:
        pairing: At least one pair; sizes above 0.
        differs: Passed on.
    """
    scale = 1.0 if pairing.measure == "nats_per_token" else 1 / math.log(2)
    denominator = sum(pairing.size)
    difference = scale * math.fsum(_signed(pairing)) / denominator
    unit, clusters = clusters_of(pairing)
    error = clustered_standard_error([(each.difference_nats, each.size) for each in clusters])
    error = None if error is None else scale * error
    interval = None
    if error is not None:
        reach = student_t_97_5(len(clusters) - 1) * error
        interval = difference - reach, difference + reach
    wins, losses, ties = _count_signs(pairing.difference_nats)
    signs = _count_signs(cluster.difference_nats for cluster in clusters)
    return Comparison(
        unit=pairing.unit,
        measure=pairing.measure,
        num_pairs=len(pairing),
        num_unpaired_documents=pairing.num_unpaired_documents,
        clusters=unit,
        num_clusters=len(clusters),
        windows_per_block=windows_per_block(len(pairing)) if unit == "blocks" else None,
        denominator=denominator,
        baseline=scale * math.fsum(pairing.baseline_nats) / denominator,
        candidate=scale * math.fsum(pairing.candidate_nats) / denominator,
        difference=difference,
        standard_error=error,
        interval_95=interval,
        perplexity_ratio=exp_or_none(difference / scale),
        perplexity_ratio_interval_95=_exp_of_ends(interval, scale),
        wins=wins,
        losses=losses,
        ties=ties,
        sign_test=SignTest(*signs, sign_test(signs[0], signs[1])),
        differs=list(differs),
        sentence=_sentence(difference / scale, interval, _count_of(len(clusters), unit))
        + _left_out(pairing.num_unpaired_documents),
    )


class Cluster(NamedTuple):
    """Pieces of text that may depend on each other."""

    difference_nats: float
    baseline_nats: float
    size: int


def _signed(pairs: Iterable[Pair]) -> Iterator[float]:
    """Yield what an exact sum of the differences has to add up."""
    for each in pairs:
        yield each.candidate_nats
        yield -each.baseline_nats


def clusters_of(pairing: Pairing) -> tuple[Literal["documents", "blocks"], list[Cluster]]:
    """Sum by document where there are two or more, else by block of consecutive windows."""
    is_one_document = pairing.document[0] == pairing.document[-1]
    if is_one_document and pairing.unit == "window":
        return "blocks", list(map(_cluster_of, blocks_of(list(pairing))))
    documents = (list(some) for _, some in groupby(pairing, key=attrgetter("document")))
    return "documents", list(map(_cluster_of, documents))


def _cluster_of(pairs: Sequence[Pair]) -> Cluster:
    return Cluster(
        math.fsum(_signed(pairs)),
        math.fsum(each.baseline_nats for each in pairs),
        sum(each.size for each in pairs),
    )


def clustered_standard_error(clusters: Sequence[tuple[float, float]]) -> float | None:
    """Return the standard error of a ratio of sums; None with fewer than two clusters.

    Args:
        clusters: of each cluster the numerator and the denominator, whose sum is above 0.

    Source: the ratio estimator of W. G. Cochran, Sampling Techniques, 3rd ed. 1977, section 6.4,
    without the finite population correction.
    """
    num = len(clusters)
    if num < 2:
        return None
    size = math.fsum(each for _, each in clusters)
    mean = math.fsum(difference for difference, _ in clusters) / size
    squares = math.fsum((difference - mean * each) ** 2 for difference, each in clusters)
    return math.sqrt(num / (num - 1) * squares) / size


def _count_signs(differences_nats: Iterable[float]) -> tuple[int, int, int]:
    """Return how often the candidate is better, worse, and the same."""
    counts = Counter((value > 0) - (value < 0) for value in differences_nats)
    return counts[-1], counts[1], counts[0]


def exp_or_none(exponent: float) -> float | None:
    """Return the exponential; None where that exceeds float64."""
    try:
        return math.exp(exponent)
    except OverflowError:
        return None


def _count_of(number: int, nouns: str) -> str:
    return f"{number} {nouns.removesuffix('s') if number == 1 else nouns}"


def _exp_of_ends(interval: tuple[float, float] | None, scale: float) -> tuple[float, float] | None:
    if interval is None:
        return None
    low, high = exp_or_none(interval[0] / scale), exp_or_none(interval[1] / scale)
    return None if low is None or high is None else (low, high)


def _left_out(num_documents: int) -> str:
    """Say it where the comparison is of less than was scored."""
    if not num_documents:
        return ""
    return f" Left out: {_count_of(num_documents, 'documents')} that only one of the jobs scored."


def _sentence(nats: float, interval: tuple[float, float] | None, clusters: str) -> str:
    """Say it in words; a perplexity is better the lower it is."""
    ratio = exp_or_none(nats)
    times = "beyond measure" if ratio is None else f"{ratio:.6g} times the baseline's"
    head = f"The candidate's perplexity is {times}"
    if interval is None:
        return f"{head}; from {clusters} no error can be given, so nothing follows."
    low, high = interval
    if low == high == 0:
        return f"Both jobs have the same nll in each of {clusters}."
    if low <= 0 <= high:
        return f"{head}, which {clusters} can't tell from chance (95 % interval)."
    verdict = "better" if high < 0 else "worse"
    return f"{head}: it is {verdict}, by the 95 % interval over {clusters}."
