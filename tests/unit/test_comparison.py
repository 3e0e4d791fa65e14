import math
import random
import statistics
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import NotComparable
from app.jobs.comparison import Comparison, Pair, Pairing, Side, compare, summarise
from app.jobs.distributions import sign_test
from app.jobs.windows import WindowTable
from evaluator.contract.reports import Result, WindowRecord
from evaluator.contract.student_t import student_t_97_5
from tests.support.fake_python import made_up_result
from tests.support.records import record

A, B = (f"sha256:{digit * 64}" for digit in "ab")
LN2 = math.log(2)


def result(scoring: dict[str, Any] | None = None, left_out: int = 0, **changes: Any) -> Result:
    base = made_up_result(1, 0.6)
    return base.model_copy(
        update={
            "scoring": base.scoring.model_copy(update=scoring or {}),
            "perplexity": base.perplexity.model_copy(
                update={"excluded_tokens": {"no_context": left_out} if left_out else {}}
            ),
            **changes,
        }
    )


def side(records: Sequence[WindowRecord], scored: Result | None = None) -> Side:
    return Side(scored or result(), WindowTable(records))


def shifted(records: Sequence[WindowRecord], *nats: float) -> list[WindowRecord]:
    return [
        each.model_copy(update={"nll_nats": each.nll_nats + nat})
        for each, nat in zip(records, nats, strict=True)
    ]


def of_pairs(pairs: list[Pair]) -> Comparison:
    documents, baseline, candidate, sizes = zip(*pairs, strict=True)
    columns = array("q", documents), array("d", baseline), array("d", candidate), array("q", sizes)
    return summarise(Pairing("window", "nats_per_token", 0, *columns))


THREE = [record(0, 0, 2, 1.0, 9), record(0, 2, 2, 1.0, 0), record(4, 0, 1, 3.0, 5)]


def test_windows_of_two_documents_worked_by_hand() -> None:
    found = compare(side(THREE), side(shifted(THREE, 1.0, 1.0, -1.0)))
    assert (found.unit, found.measure, found.clusters) == ("window", "nats_per_token", "documents")
    assert (found.num_pairs, found.num_clusters, found.denominator) == (3, 2, 5)
    # 5 nats over 5 tokens, 6 nats over 5 tokens
    assert (found.baseline, found.candidate) == (1.0, 1.2)
    assert found.difference == pytest.approx(0.2)
    # document sums 2 and -1; residuals 2 - 0.2 * 4 = 1.2 and -1 - 0.2 = -1.2; their squares sum to
    # 2.88, times 2/1 is 5.76, whose root is 2.4, over 5 tokens
    assert found.standard_error == pytest.approx(0.48)
    # the table of Student's t has 12.706 for one degree of freedom
    assert found.interval_95 == pytest.approx((0.2 - 12.7062 * 0.48, 0.2 + 12.7062 * 0.48), 1e-5)
    assert found.perplexity_ratio == pytest.approx(1.221403)
    assert (found.wins, found.losses, found.ties) == (1, 2, 0)
    assert (found.sign_test.wins, found.sign_test.losses, found.sign_test.p_value) == (1, 1, 1.0)
    assert found.sentence == (
        "The candidate's perplexity is 1.2214 times the baseline's, which 2 documents can't tell "
        "from chance (95 % interval)."
    )


def test_one_document_is_compared_by_its_windows() -> None:
    records = [record(0, 10 * n, 10, 20.0, 7 if n == 0 else 0) for n in range(4)]
    found = compare(side(records), side(shifted(records, -1.0, -2.0, -3.0, -2.0)))
    assert (found.clusters, found.num_clusters, found.windows_per_block) == ("blocks", 4, 1)
    assert found.difference == pytest.approx(-0.2)
    # differences per window -1, -2, -3, -2: stdev sqrt(2/3), over sqrt(4), over 10 tokens
    assert found.standard_error == pytest.approx(math.sqrt(2 / 3) / 2 / 10)
    assert found.sign_test.p_value == 2 / 2**4
    assert found.sentence.endswith(": it is better, by the 95 % interval over 4 blocks.")


def test_many_windows_of_one_document_are_compared_by_blocks() -> None:
    # Differences 1, 1, 3, 3, ... of 64 windows: 32 blocks of two, whose sums 2 and 6 are 2 off.
    found = of_pairs([Pair(0, 5.0, 6.0 if n % 4 < 2 else 8.0, 1) for n in range(64)])
    assert (found.clusters, found.num_clusters, found.windows_per_block) == ("blocks", 32, 2)
    assert found.difference == 2.0
    assert found.standard_error == pytest.approx(math.sqrt(32 / 31 * 128) / 64)


def test_other_windows_of_the_same_tokens_are_compared_by_document() -> None:
    other = [record(0, 0, 4, 3.0, 9), record(4, 0, 1, 3.5, 5)]
    scoring = {"window": 20, "stride": 20}
    found = compare(side(THREE), side(other, result(scoring)))
    assert (found.unit, found.num_pairs, found.num_clusters) == ("document", 2, 2)
    assert found.difference == pytest.approx((1.0 + 0.5) / 5)
    assert [tuple(each) for each in found.differs] == [
        ("scoring.window", "10", "20"),
        ("scoring.stride", "10", "20"),
    ]


def test_other_tokens_of_a_document_are_refused() -> None:
    other = [record(0, 1, 3, 3.0, 9), record(4, 0, 1, 3.5, 5)]
    with pytest.raises(NotComparable, match=r"document 0 has 4 scored tokens .* and 3 in"):
        compare(side(THREE), side(other))


def test_documents_of_one_job_alone_are_left_out_and_counted() -> None:
    other = [record(0, 0, 4, 3.0, 9), record(5, 0, 1, 9.0, 2)]
    found = compare(side(THREE), side(other))
    assert (found.num_pairs, found.num_unpaired_documents) == (1, 2)
    assert (found.difference, found.standard_error, found.interval_95) == (0.25, None, None)
    assert found.perplexity_ratio_interval_95 is None
    assert "from 1 document no error can be given" in found.sentence
    assert found.sentence.endswith("Left out: 2 documents that only one of the jobs scored.")
    with pytest.raises(NotComparable, match="no scored document in common"):
        compare(side(THREE), side([record(7, 0, 1, 1.0, 1)]))


def test_another_tokenizer_is_compared_in_bits_per_byte() -> None:
    one = [record(0, 0, 3, 8 * LN2, 8), record(1, 0, 4, 8 * LN2, 8)]
    other = [record(0, 0, 5, 6 * LN2, 8), record(0, 5, 1, 6 * LN2, 0), record(1, 0, 1, 8 * LN2, 8)]
    found = compare(side(one), side(other, result(tokenizer_digest=A, dtype="bfloat16")))
    assert (found.unit, found.measure, found.denominator) == ("document", "bits_per_byte", 16)
    assert (found.baseline, found.candidate) == pytest.approx((1.0, 1.25))
    assert found.difference == pytest.approx(0.25)
    # residuals of the sums 4 and 0 bits from 0.25 bits a byte: 2 and -2; sqrt(2 * 8) / 16
    assert found.standard_error == pytest.approx(0.25)
    assert found.perplexity_ratio == pytest.approx(2**0.25)
    assert [each.name for each in found.differs] == ["tokenizer", "dtype"]


def test_bits_per_byte_need_every_token() -> None:
    lacking = result(tokenizer_digest=A, left_out=12)
    with pytest.raises(NotComparable, match="candidate left 12 tokens unscored"):
        compare(side(THREE), side(THREE, lacking))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (result(data_digest=B), f"data digest is .* and '{B}'"),
        (result({"special_tokens": "parse"}), r"scoring\.special_tokens is 'text' .* 'parse'"),
        (result({"join": "\n\n"}), r"scoring\.join is None .* '\\n\\n'"),
    ],
)
def test_another_text_is_refused_and_what_differs_is_named(changed: Result, named: str) -> None:
    with pytest.raises(NotComparable, match=named):
        compare(side(THREE), side(THREE, changed))


def test_a_job_and_itself_are_the_same() -> None:
    found = compare(side(THREE), side(THREE))
    assert (found.difference, found.standard_error, found.interval_95) == (0.0, 0.0, (0.0, 0.0))
    assert (found.ties, found.sign_test.ties, found.sign_test.p_value) == (3, 2, None)
    assert found.sentence == "Both jobs have the same nll in each of 2 documents."


@pytest.mark.parametrize("place", [(0, 2), (0, 1), (4, 0)])
def test_windows_out_of_order_are_refused(place: tuple[int, int]) -> None:
    later = [record(4, 0, 1, 3.0, 5), record(*place, 2, 1.0, 9)]
    with pytest.raises(ValueError, match="comes after"):
        WindowTable(later)


def test_what_exceeds_a_float_is_null() -> None:
    found = compare(side(THREE), side(shifted(THREE, 1e6, 1e6, 1e6)))
    assert found.difference == pytest.approx(6e5)
    assert (found.perplexity_ratio, found.perplexity_ratio_interval_95) == (None, None)


def test_a_small_difference_of_large_sums_is_not_lost() -> None:
    pairs = [Pair(n, 1e15 + n, 1e15 + n + 0.125, 1) for n in range(10)]
    assert of_pairs(pairs).difference == 0.125


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_with_clusters_of_one_size_it_is_the_paired_t_test(values: list[float]) -> None:
    found = of_pairs([Pair(n, 10.0, 10.0 + value, 7) for n, value in enumerate(values)])
    moved = [(10.0 + value) - 10.0 for value in values]
    assert found.difference == pytest.approx(statistics.fmean(moved) / 7, abs=1e-12)
    expected = statistics.stdev(moved) / math.sqrt(len(moved)) / 7
    assert found.standard_error == pytest.approx(expected, abs=1e-9)


def coverage(*, document_sigma: float, as_documents: bool) -> float:
    """How often the interval holds the true difference, over 400 made-up pairs of jobs."""
    rng = random.Random(4)
    truth, num_held = 0.05, 0
    for _ in range(400):
        pairs: list[Pair] = []
        for document in range(15):
            shift = rng.gauss(truth, document_sigma)
            for _ in range(rng.randint(1, 4)):
                size = rng.randint(5, 20)
                base = rng.gauss(3.0, 1.0) * size
                moved = base + sum(rng.gauss(shift, 0.2) for _ in range(size))
                pairs.append(Pair(document if as_documents else len(pairs), base, moved, size))
        interval = of_pairs(pairs).interval_95
        assert interval is not None
        num_held += interval[0] <= truth <= interval[1]
    return num_held / 400


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    # Three standard errors of 400 draws are 0.033.
    assert coverage(document_sigma=0.1, as_documents=True) == pytest.approx(0.95, abs=0.033)
    # What clusters are for: windows of a document taken as independent hold it less often.
    assert coverage(document_sigma=0.1, as_documents=False) < 0.85


@pytest.mark.parametrize(
    ("wins", "losses", "p"), [(5, 0, 0.0625), (1, 4, 0.375), (8, 1, 20 / 512), (1, 0, 1), (4, 4, 1)]
)
def test_sign_test_by_hand(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 400), st.integers(0, 400))
def test_sign_test_equals_the_sum_of_exact_chances(wins: int, losses: int) -> None:
    """All outcomes that are no likelier than the one seen, in integers."""
    num = wins + losses
    if num == 0:
        assert sign_test(wins, losses) is None
        return
    seen = math.comb(num, wins)
    ways = sum(each for k in range(num + 1) if (each := math.comb(num, k)) <= seen)
    assert sign_test(wins, losses) == pytest.approx(ways / 2**num, rel=1e-9)


def test_sign_test_of_a_million_windows_is_quick_and_finite() -> None:
    p = sign_test(499_000, 501_000)
    # the normal approximation with its correction for continuity
    assert p == pytest.approx(math.erfc((1_000 - 0.5) / 500 / math.sqrt(2)), rel=1e-3)
    assert sign_test(0, 1_000_000) == 0.0


@pytest.mark.parametrize(
    ("degrees", "quantile"),  # printed tables of Student's t
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_student_t_equals_the_tables(degrees: int, quantile: float) -> None:
    assert round(student_t_97_5(degrees), 3) == quantile


@pytest.mark.parametrize("degrees", [1, 2, 5, 8, 999, 1001, 100_000])
def test_student_t_cuts_off_the_share_that_it_says(degrees: int) -> None:
    """By integration of the density with Simpson's rule."""
    end, num_steps = student_t_97_5(degrees), 2_000
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    constant /= math.sqrt(degrees * math.pi)
    heights = [
        constant * (1 + (end * k / num_steps) ** 2 / degrees) ** (-(degrees + 1) / 2)
        for k in range(num_steps + 1)
    ]
    inner = 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    share = 2 * (heights[0] + inner + heights[-1]) * end / num_steps / 3
    assert share == pytest.approx(0.95, abs=1e-8)


def test_the_worked_example_of_the_manual_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    found = compare(side(THREE), side(shifted(THREE, 1.0, 1.0, -1.0)))
    assert found.interval_95 is not None
    for figure in (
        f"/ 5 = {found.difference:.1f} nats per token",
        f"exp(0.2) = {found.perplexity_ratio:.3f}",
        f"/ 5 = {found.standard_error:.2f}",
        f"= {found.interval_95[0]:.2f} to {found.interval_95[1]:.2f}:",
    ):
        assert figure in page
