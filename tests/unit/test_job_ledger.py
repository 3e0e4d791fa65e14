import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.jobs.ledger import (
    agree,
    is_complete,
    pack_counts,
    pack_floats,
    to_entry,
    to_row,
    total,
    unpack_counts,
    unpack_floats,
)
from evaluator.contract.reports import LedgerEntry


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_floats_come_back_bit_for_bit(values: list[float]) -> None:
    read = unpack_floats(pack_floats(values))
    assert [value.hex() for value in read] == [value.hex() for value in values]


@given(st.lists(st.integers(min_value=0, max_value=2**63 - 1)))
def test_counts_come_back(values: list[int]) -> None:
    assert list(unpack_counts(pack_counts(values))) == values


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_an_entry_survives_json_and_the_database_bit_for_bit(value: float) -> None:
    entry = LedgerEntry(
        batch=3,
        nll_nats=(value, 0.1),
        nll_squares=(0.3, 0.7),
        num_scored=(5, 7),
        nll_by_context=(0.25, -1.5),
    )
    sent = LedgerEntry.model_validate_json(entry.model_dump_json())
    back = to_entry(to_row(sent, job_id="job_1", attempt=1, rank=0))
    assert [number.hex() for number in back.nll_nats] == [value.hex(), (0.1).hex()]
    assert (back.nll_squares, back.num_scored) == ((0.3, 0.7), (5, 7))


def test_the_total_is_exact_where_plain_addition_is_not() -> None:
    entries = [
        LedgerEntry(
            batch=0,
            nll_nats=(1e16, 1.0),
            nll_squares=(0.0, 1.0),
            num_scored=(1, 2),
            nll_by_context=(0.25, -1.5),
        ),
        LedgerEntry(
            batch=1,
            nll_nats=(-1e16,),
            nll_squares=(0.0,),
            num_scored=(4,),
            nll_by_context=(0.25, -1.5),
        ),
    ]
    rows = [to_row(entry, job_id="job_1", attempt=1, rank=0) for entry in entries]
    assert total(rows) == (1.0, 7)
    assert total(reversed(rows)) == (1.0, 7)
    assert math.fsum([1e16, 1.0, -1e16]) == 1.0


def test_a_row_knows_its_size_and_of_an_older_server_lacks_squares() -> None:
    entry = LedgerEntry(
        batch=0,
        nll_nats=(1.0, 2.0),
        nll_squares=(0.5, 1.5),
        num_scored=(3, 4),
        nll_by_context=(0.25, -1.5),
    )
    row = to_row(entry, job_id="job_1", attempt=1, rank=0)
    assert (row.num_windows, row.num_scored_tokens) == (2, 7)
    old = row._replace(nll_squares=None)
    other = row._replace(nll_squares=pack_floats((0.5, 1.25)))
    assert (is_complete(row), is_complete(old)) == (True, False)
    assert (agree(row, old), agree(old, row), agree(row, other)) == (True, True, False)
    with pytest.raises(ValueError, match="by an older server"):
        to_entry(old)
