import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.contract.student_t import student_t_97_5
from evaluator.figure.perplexity import (
    ClusterSum,
    ScoredWindow,
    TextSize,
    cluster_sums,
    clustered_standard_error,
    exp_or_none,
    measure,
    naive_standard_error,
)


def size(num_documents: int = 1, num_bytes: int = 10, num_words: int = 2) -> TextSize:
    return TextSize(
        num_tokens=3, num_bytes=num_bytes, num_words=num_words, num_documents=num_documents
    )


def scored_window(
    document: int, nll_nats: float, num_scored: int, nll_squares: float = 0.0
) -> ScoredWindow:
    return ScoredWindow(document, 0, nll_nats, nll_squares, num_scored)


def test_three_tokens_by_hand() -> None:
    # Probabilities 1/2, 1/4 and 1/8: the product is 2^-6, so the perplexity is 2^(6/3).
    nll_nats = math.log(2) + math.log(4) + math.log(8)
    value = measure([scored_window(0, nll_nats, 3)], size(num_bytes=12))
    assert value.token_perplexity == pytest.approx(4.0, rel=1e-15)
    assert value.bits_per_byte == pytest.approx(6 / 12, rel=1e-15)
    assert value.num_scored_tokens == 3
    # One window of one document: nothing to tell an error from.
    assert value.mean_nll_standard_error is None
    assert value.token_perplexity_standard_error is None
    assert value.token_perplexity_interval_95 is None
    assert (value.standard_error_clusters, value.num_clusters) == ("blocks", 1)


def test_words_and_bytes_by_hand() -> None:
    # 2^-6 over 2 words is 8 a word, over 12 bytes sqrt(2) a byte.
    value = measure([scored_window(0, 6 * math.log(2), 3)], size(num_bytes=12, num_words=2))
    assert value.word_perplexity == pytest.approx(8, rel=1e-14)
    assert value.byte_perplexity == pytest.approx(math.sqrt(2), rel=1e-14)
    assert value.num_words == 2
    assert "white space" in value.word_rule


def test_word_perplexity_is_null_where_it_exceeds_float64_and_the_rest_stays() -> None:
    # One word of 1 200 digits.
    value = measure([scored_window(0, 1600.0, 1200)], size(num_bytes=1200, num_words=1))
    assert value.word_perplexity is None
    assert value.token_perplexity == pytest.approx(math.exp(4 / 3))
    assert value.byte_perplexity == pytest.approx(math.exp(4 / 3))


def test_naive_error_by_hand() -> None:
    # Tokens of 1, 2 and 3 nats: mean 2, variance 14/3 - 4 = 2/3, error sqrt(2/3 / 2).
    windows = [scored_window(0, 3.0, 2, 5.0), scored_window(0, 3.0, 1, 9.0)]
    assert naive_standard_error(windows) == pytest.approx(math.sqrt(1 / 3), rel=1e-15)
    assert naive_standard_error(windows[1:]) is None
    # Equal tokens: rounding must not make it the root of a negative number.
    equal = [scored_window(0, 0.3, 3, 3 * 0.1**2)]
    assert naive_standard_error(equal) == pytest.approx(0, abs=1e-8)


def test_tokens_weigh_alike_whatever_window_they_are_in() -> None:
    # Never the mean of window means, which is 6.0 here.
    value = measure([scored_window(0, 2.0, 1), scored_window(1, 90.0, 9)], size(2))
    assert value.mean_nll_nats == 9.2


def test_documents_of_perplexity_10_and_1000_are_not_averaged() -> None:
    windows = [scored_window(0, 100 * math.log(10), 100), scored_window(1, 10 * math.log(1000), 10)]
    value = measure(windows, size(2))
    assert value.token_perplexity == pytest.approx(10 ** (130 / 110), rel=1e-14)


def test_standard_error_by_hand() -> None:
    # Two documents, nll 6 of 2 tokens and 4 of 2: mean 2.5, deviations +1 and -1,
    # sqrt(2/1 * 2) / 4 = 0.5.
    value = measure([scored_window(0, 6.0, 2), scored_window(1, 4.0, 2)], size(2))
    assert value.mean_nll_standard_error == 0.5
    assert value.token_perplexity_standard_error == pytest.approx(0.5 * math.exp(2.5))
    low, high = value.token_perplexity_interval_95 or (0.0, 0.0)
    assert low == pytest.approx(math.exp(2.5 - 0.5 * 12.706204736))
    assert high == pytest.approx(math.exp(2.5 + 0.5 * 12.706204736))
    assert (value.standard_error_clusters, value.num_clusters) == ("documents", 2)


def test_windows_of_a_document_are_one_cluster() -> None:
    windows = [scored_window(0, 1.0, 1), scored_window(0, 5.0, 1), scored_window(3, 4.0, 2)]
    assert cluster_sums(windows) == ("documents", [ClusterSum(6.0, 2), ClusterSum(4.0, 2)])
    assert cluster_sums(windows[:2]) == ("blocks", [ClusterSum(1.0, 1), ClusterSum(5.0, 1)])


def test_equal_clusters_give_the_textbook_error_of_a_mean() -> None:
    # With one token each the ratio estimator is s / sqrt(n) with the sample deviation s.
    values = [1.0, 2.0, 4.0, 8.0]
    mean = 3.75
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 3)
    error = clustered_standard_error([ClusterSum(v, 1) for v in values])
    assert error == pytest.approx(deviation / 2, rel=1e-15)


def test_overflow_loses_the_perplexity_and_keeps_the_mean() -> None:
    value = measure([scored_window(0, 1600.0, 2), scored_window(1, 1500.0, 2)], size(2))
    assert value.token_perplexity is None
    assert value.token_perplexity_standard_error is None
    assert value.token_perplexity_interval_95 is None
    assert value.mean_nll_nats == 775.0
    assert value.mean_nll_standard_error == 25.0
    assert value.bits_per_byte == pytest.approx(3100 / math.log(2) / 10)
    assert "Infinity" not in value.model_dump_json()
    assert "NaN" not in value.model_dump_json()


def test_an_interval_that_overflows_is_null_although_the_value_is_not() -> None:
    value = measure([scored_window(0, 1438.0, 2), scored_window(1, 1380.0, 2)], size(2))
    assert value.token_perplexity is not None
    assert value.token_perplexity_interval_95 is None


def test_exponential_ends_where_float64_does() -> None:
    assert exp_or_none(709.7) is not None
    assert exp_or_none(709.8) is None
    assert exp_or_none(math.inf) == math.inf


@given(
    st.lists(st.floats(min_value=0, max_value=1e9, allow_subnormal=False), min_size=2, max_size=50),
    st.randoms(use_true_random=False),
)
def test_the_order_of_windows_changes_no_bit(values: list[float], order: random.Random) -> None:
    windows = [scored_window(index % 3, value, 7) for index, value in enumerate(values)]
    shuffled = list(windows)
    order.shuffle(shuffled)
    assert measure(windows, size(3)) == measure(shuffled, size(3))


def alternating(num_windows: int) -> list[ScoredWindow]:
    return [ScoredWindow(0, n, 1.0 if n % 4 < 2 else 3.0, 0.0, 1) for n in range(num_windows)]


@pytest.mark.parametrize(
    ("num_windows", "length", "num_blocks"),
    [(1, 1, 1), (32, 1, 32), (33, 2, 17), (64, 2, 32), (65, 3, 22), (160, 5, 32)],
)
def test_windows_of_one_document_make_blocks(
    num_windows: int, length: int, num_blocks: int
) -> None:
    value = measure(alternating(num_windows), size())
    assert value.standard_error_clusters == "blocks"
    assert (value.windows_per_block, value.num_clusters) == (length, num_blocks)


def test_block_error_is_that_of_the_manual() -> None:
    value = measure(alternating(64), size())
    # Sums 2 and 6 in turn: 32 residuals of 2.
    assert value.mean_nll_standard_error == pytest.approx(math.sqrt(32 / 31 * 128) / 64, rel=1e-15)
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    by_window = clustered_standard_error(ClusterSum(w.nll_nats, 1) for w in alternating(64))
    assert f"/ 64 = {value.mean_nll_standard_error:.6f};" in page
    assert f"/ 64 = {by_window:.6f}\n" in page


def coverage(phi: float) -> tuple[float, float]:
    """How often the 95 % interval holds the true mean 3: by blocks, and by windows.

    Over 600 made-up documents of 160 windows; each window's sum hangs on the one before by `phi`.
    """
    rng = random.Random(4)
    held = [0, 0]
    for _ in range(600):
        windows, state = [], rng.gauss(0.0, 1 / math.sqrt(1 - phi**2))
        for n in range(160):
            windows.append(ScoredWindow(0, n, 3.0 + state, 0.0, 1))
            state = phi * state + rng.gauss(0.0, 1.0)
        mean = math.fsum(w.nll_nats for w in windows) / 160
        by_window = [ClusterSum(w.nll_nats, 1) for w in windows]
        for kind, clusters in enumerate((cluster_sums(windows)[1], by_window)):
            error = clustered_standard_error(clusters)
            assert error is not None
            held[kind] += abs(mean - 3.0) <= student_t_97_5(len(clusters) - 1) * error
    return held[0] / 600, held[1] / 600


def test_blocks_hold_the_truth_more_often_than_windows() -> None:
    # Neighbours' correlation 0.5 makes the variance of the mean three times that of independent
    # windows: 1.96 / sqrt(3) errors hold it in 74 %. Blocks of five see 74 % of the variance: 91 %.
    blocks, windows = coverage(0.5)
    assert 0.86 < blocks < 0.95
    assert 0.68 < windows < 0.80
    # Nothing is lost where windows are independent.
    blocks, _ = coverage(0.0)
    assert 0.91 < blocks < 0.97
