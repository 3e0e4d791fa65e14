import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.contract.reports import Failure, Hello, Progress, RankTiming, Report
from evaluator.contract.states import FailureReason
from evaluator.errors import Superseded
from evaluator.reporting.reporter import Destination, Reporter
from evaluator.reporting.spool import Spool
from tests.support.report_server import ReportServer
from tests.support.runs import REPORT
from tests.support.server import free_port, wait_for

WITHIN_S = 20.0


@pytest.fixture
def server() -> Iterator[ReportServer]:
    server = ReportServer()
    yield server
    server.close()


def hello(seq: int) -> Hello:
    return Hello(
        rank=3,
        seq=seq,
        local_rank=1,
        node_rank=1,
        world_size=4,
        host="a",
        pid=7,
        device="cpu",
        versions={},
    )


def progress(seq: int) -> Progress:
    return Progress(
        rank=3, seq=seq, stage="score", timing=RankTiming(rank=3, local_rank=1, node_rank=1)
    )


def failure(seq: int) -> Failure:
    return Failure(rank=3, seq=seq, reason=FailureReason.INTERNAL, message="a defect")


def spooled(path: Path) -> list[Report]:
    return [REPORT.validate_json(line) for line in path.read_bytes().splitlines()]


def test_reports_arrive_in_order_with_the_token_and_stay_in_the_spool(
    tmp_path: Path, server: ReportServer
) -> None:
    path = tmp_path / "spool" / "rank-00003.jsonl"
    reporter = Reporter(path, 3, Destination(server.url, "s3cret"))
    for seq in range(1, 41):
        reporter.send(progress(seq))
    assert reporter.close()
    assert server.seqs() == list(range(1, 41))
    assert set(server.authorization) == {"Bearer s3cret"}
    assert [report.seq for report in spooled(path)] == list(range(1, 41))


def test_without_a_server_the_spool_is_all(tmp_path: Path) -> None:
    path = tmp_path / "rank-00003.jsonl"
    reporter = Reporter(path, 3, None)
    reporter.send(hello(1))
    reporter.send(failure(2))
    assert reporter.close()
    assert spooled(path) == [hello(1), failure(2)]


def test_a_server_that_comes_up_late_gets_everything_in_order(tmp_path: Path) -> None:
    port = free_port()
    reporter = Reporter(tmp_path / "s.jsonl", 3, Destination(f"http://127.0.0.1:{port}/"))
    for seq in range(1, 4):
        reporter.send(progress(seq))
    server = ReportServer(port)
    try:
        reporter.send(failure(4))
        assert reporter.close(WITHIN_S)
        assert server.seqs() == [1, 2, 3, 4]
    finally:
        server.close()


def test_a_server_that_is_away_leaves_the_last_word_to_the_spool(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    reporter = Reporter(path, 3, Destination(f"http://127.0.0.1:{free_port()}/"))
    reporter.send(failure(1))
    assert not reporter.close(0.3)
    assert spooled(path) == [failure(1)]


def test_after_errors_the_same_reports_are_sent_again(tmp_path: Path, server: ReportServer) -> None:
    answers = iter([500, 503, 404])
    server.answer = lambda _batch: next(answers, 204)
    reporter = Reporter(tmp_path / "s.jsonl", 3, Destination(server.url))
    reporter.send(hello(1))
    assert reporter.close(WITHIN_S)
    assert server.seqs() == [1, 1, 1, 1]


def test_a_slow_server_does_not_slow_the_run(tmp_path: Path, server: ReportServer) -> None:
    server.gate.clear()
    reporter = Reporter(tmp_path / "s.jsonl", 3, Destination(server.url))
    for seq in range(1, 200):
        reporter.send(progress(seq))
    # The run got here while the server has not answered once.
    assert server.batches == []
    server.gate.set()
    assert reporter.close(WITHIN_S)
    assert server.seqs() == list(range(1, 200))
    # What had piled up went in few posts.
    assert len(server.batches) < 20


@pytest.mark.parametrize("status", [401, 409, 410])
def test_an_attempt_that_is_not_current_stops(
    tmp_path: Path, server: ReportServer, status: int
) -> None:
    server.answer = lambda _batch: status
    reporter = Reporter(tmp_path / "s.jsonl", 3, Destination(server.url))
    reporter.check()
    reporter.send(hello(1))

    def stopped() -> bool:
        try:
            reporter.check()
        except Superseded:
            return True
        return False

    assert wait_for(stopped, within_s=WITHIN_S, what="the answer reached the run")
    reporter.send(failure(2))
    assert not reporter.close(WITHIN_S)
    # It is not asked again.
    assert server.seqs() == [1]
    assert len(spooled(tmp_path / "s.jsonl")) == 2


def test_one_refused_report_does_not_hold_up_the_others(
    tmp_path: Path, server: ReportServer
) -> None:
    server.answer = lambda batch: 422 if any(r.seq == 3 for r in batch.reports) else 204
    server.gate.clear()
    reporter = Reporter(tmp_path / "s.jsonl", 3, Destination(server.url))
    for seq in range(1, 7):
        reporter.send(progress(seq))
    server.gate.set()
    assert reporter.close(WITHIN_S)
    accepted = [
        report.seq
        for batch in server.batches
        if not any(r.seq == 3 for r in batch.reports)
        for report in batch.reports
    ]
    assert accepted == [1, 2, 4, 5, 6]
    alone = [batch for batch in server.batches if [r.seq for r in batch.reports] == [3]]
    assert len(alone) == 1


def test_a_spool_is_continued_without_a_torn_line_and_old_reports_are_not_posted(
    tmp_path: Path, server: ReportServer
) -> None:
    path = tmp_path / "s.jsonl"
    first = Reporter(path, 3, None)
    first.send(hello(1))
    first.send(progress(2))
    first.close()
    with path.open("ab") as file:
        file.write(b'{"rank":3,"seq":3,"type":"prog')
    second = Reporter(path, 3, Destination(server.url))
    assert second.next_seq == 3
    second.send(failure(3))
    assert second.close()
    assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert server.seqs() == [3]


def test_large_reports_go_in_several_posts(tmp_path: Path, server: ReportServer) -> None:
    server.gate.clear()
    reporter = Reporter(tmp_path / "s.jsonl", 3, Destination(server.url))
    for seq in range(1, 6):
        report = Failure(rank=3, seq=seq, reason=FailureReason.INTERNAL, message="x" * 700_000)
        reporter.send(report)
    server.gate.set()
    assert reporter.close(WITHIN_S)
    assert [len(batch.reports) for batch in server.batches] == [1] * 5


def test_a_report_that_finds_no_room_leaves_nothing_of_itself(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s.jsonl")
    spool.append(b'{"seq": 1}', sync=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Too large a file fails like a full disk: a part is written, then comes the error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            spool.append(b"x" * 100, sync=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "s.jsonl")
    spool.append(b'{"seq": 2}', sync=True)
    spool.close()
    assert (tmp_path / "s.jsonl").read_bytes() == b'{"seq": 1}\n{"seq": 2}\n'
