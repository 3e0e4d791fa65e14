from pathlib import Path

import pytest

from evaluator.contract.audit import Author
from evaluator.contract.reports import FinishedEntry, LedgerEntry
from evaluator.errors import PlanMismatch, ResultInvalid
from evaluator.figure.reduce import join_ledgers
from evaluator.planning.plan import make_plan
from evaluator.planning.windows import Window
from evaluator.scoring.ledger import Ledger, read_finished
from tests.support.runs import write_finished

# Three batches of one window with 4, 3 and 2 tokens.
PLAN = make_plan(
    [Window(0, 0, 4, 0, True), Window(1, 0, 3, 0, True), Window(2, 0, 2, 0, True)],
    batch_tokens=2,
    basis=b"",
)


def entry(batch: int, nll_nats: float = 1.5) -> LedgerEntry:
    squares = (nll_nats,)
    return LedgerEntry(
        batch=batch,
        nll_nats=(nll_nats,),
        nll_squares=squares,
        num_scored=(4 - batch,),
        nll_by_context=(nll_nats,) * (4 - batch).bit_length(),
    )


def test_only_what_is_new_is_reported_and_once() -> None:
    ledger = Ledger(PLAN)
    ledger.take_over([entry(1)])
    ledger.add(entry(0))
    assert ledger.take_unreported() == (entry(0),)
    assert ledger.take_unreported() == ()
    assert ledger.added == [entry(0)]
    assert ledger.unfinished == [2]
    assert ledger.entries == [entry(0), entry(1)]


def test_the_same_batch_twice_must_carry_the_same_numbers() -> None:
    ledger = Ledger(PLAN)
    ledger.take_over([entry(1), entry(1)])
    with pytest.raises(ResultInvalid, match="batch 1 was scored twice, with different numbers"):
        ledger.take_over([entry(1, nll_nats=1.5000000000000002)])


def test_entries_read_back_to_the_last_bit(tmp_path: Path) -> None:
    entries = [entry(0, 0.1 + 0.2), entry(1, 1e300), entry(2, 5e-324)]
    path = write_finished(tmp_path / "finished.jsonl", entries[:1], entries[1:])
    finished = read_finished(path, attempt=2)
    assert [each.entry for each in finished] == entries
    assert [(each.author.attempt, each.author.rank) for each in finished] == [
        (1, 0),
        (1, 1),
        (1, 1),
    ]


def test_entries_of_this_very_attempt_are_refused(tmp_path: Path) -> None:
    path = write_finished(tmp_path / "finished.jsonl", [entry(0)])
    with pytest.raises(PlanMismatch, match=r"line 1 of .* is of attempt 1, .* higher `attempt`"):
        read_finished(path, attempt=1)


WHOLE = FinishedEntry(
    author=Author(attempt=1, rank=0, node_rank=0, host="here"), entry=entry(0)
).model_dump_json()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WHOLE + '\n{"ba', "line 2 of"),
        (WHOLE.replace('"nll_nats":[1.5]', '"nll_nats":[NaN]'), "line 1 of"),
        (WHOLE.replace('"nll_nats":[1.5]', '"nll_nats":[1.5,2.5]'), "line 1 of"),
    ],
    ids=["torn", "NaN", "lengths"],
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "finished.jsonl"
    path.write_text(content)
    with pytest.raises(PlanMismatch, match=f"{message} .* is no finished batch"):
        read_finished(path, attempt=2)


def test_a_missing_file_is_no_reason_to_score_all_again(tmp_path: Path) -> None:
    with pytest.raises(PlanMismatch, match="can't be read"):
        read_finished(tmp_path / "finished.jsonl", attempt=2)


def test_the_union_of_all_ranks_is_the_plan() -> None:
    ledger = join_ledgers(PLAN, [entry(2)], [[entry(1)], [], [entry(0)]])
    assert ledger.entries == [entry(0), entry(1), entry(2)]


def test_a_batch_that_nobody_scored_is_an_error() -> None:
    with pytest.raises(ResultInvalid, match=r"1 of 3 batches are missing: \[1\]"):
        join_ledgers(PLAN, [entry(2)], [[entry(0)]])


def test_a_batch_that_two_ranks_scored_is_an_error() -> None:
    with pytest.raises(ResultInvalid, match="some were scored by two ranks"):
        join_ledgers(PLAN, [], [[entry(0), entry(1)], [entry(1), entry(2)]])
