import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.launchers import rundir
from app.launchers.processes import ProcessId

ORDER = rundir.Order(
    launch_id="a1", agents=(rundir.Command(("python", "-c", "ö"), {"KEY": "Wert ü"}),), grace_s=2.5,
    log_max_bytes=1000,
)  # fmt: skip
CLAIM = rundir.Claim("a1", ProcessId("boot", 12, 345))
RECORD = rundir.ExitRecord(
    exit_code=None, signal=9, stopped=True, ended_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    root_cause="rank 1 was killed", log_tail=("one", "zwei ü"),
)  # fmt: skip


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    rundir.write_order(tmp_path, ORDER)
    assert rundir.read_order(tmp_path) == ORDER
    assert names(tmp_path) == {"launch.json"}


def test_order_of_the_same_launch_is_kept(tmp_path: Path) -> None:
    rundir.write_order(tmp_path, ORDER)
    rundir.write_order(tmp_path, ORDER._replace(grace_s=1.0))
    assert rundir.read_order(tmp_path) == ORDER


def test_order_of_another_launch_is_refused(tmp_path: Path) -> None:
    rundir.write_order(tmp_path, ORDER)
    with pytest.raises(FileExistsError, match="belongs to another launch"):
        rundir.write_order(tmp_path, ORDER._replace(launch_id="b2"))
    assert rundir.read_order(tmp_path) == ORDER
    assert names(tmp_path) == {"launch.json"}


@pytest.mark.parametrize("text", ["", "{", "{}", '{"launch_id": "a1"}'])
def test_damaged_order_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "launch.json").write_text(text)
    with pytest.raises(ValueError, match=r"Expecting|is not an order"):
        rundir.read_order(tmp_path)


def test_one_of_many_claims_wins(tmp_path: Path) -> None:
    wins: list[int] = []
    barrier = threading.Barrier(8)

    def try_to_claim(number: int) -> None:
        barrier.wait()
        claim = CLAIM._replace(process=ProcessId("boot", number, 1))
        if rundir.claim(tmp_path, claim):
            wins.append(number)

    threads = [threading.Thread(target=try_to_claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    found = rundir.read_claim(tmp_path)
    assert found is not None
    assert found.process.pid == wins[0]
    assert names(tmp_path) == {"supervisor.json"}


def test_claim_names_the_process(tmp_path: Path) -> None:
    assert rundir.read_claim(tmp_path) is None
    assert not rundir.is_claimed(tmp_path)
    assert rundir.claim(tmp_path, CLAIM)
    assert not rundir.claim(tmp_path, CLAIM)
    assert rundir.read_claim(tmp_path) == CLAIM
    assert rundir.is_claimed(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"launch_id": "a1", "pid": 1, "more": 2}', "\0"])
def test_damaged_claim_and_exit_record_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "supervisor.json").write_text(text)
    (tmp_path / "exit.json").write_text(text)
    assert rundir.read_claim(tmp_path) is None
    assert rundir.read_exit(tmp_path) is None


def test_unreadable_is_not_absent(tmp_path: Path) -> None:
    (tmp_path / "exit.json").mkdir()
    with pytest.raises(IsADirectoryError):
        rundir.read_exit(tmp_path)


def test_exit_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert rundir.read_exit(tmp_path) is None
    rundir.write_exit(tmp_path, RECORD)
    assert rundir.read_exit(tmp_path) == RECORD
    assert names(tmp_path) == {"exit.json"}
    stored = json.loads((tmp_path / "exit.json").read_text())
    assert stored["ended_at"] == "2026-01-02T03:04:05.000006+00:00"


def test_stop_may_be_asked_twice(tmp_path: Path) -> None:
    assert not rundir.stop_is_asked(tmp_path)
    rundir.ask_stop(tmp_path)
    rundir.ask_stop(tmp_path)
    assert rundir.stop_is_asked(tmp_path)


def test_latest_log_is_the_end_of_the_newest_file(tmp_path: Path) -> None:
    assert rundir.read_latest_log(tmp_path) == b""
    (tmp_path / "log.txt").write_bytes(b"0123456789")
    assert rundir.read_latest_log(tmp_path) == b"0123456789"
    assert rundir.read_latest_log(tmp_path, max_bytes=3) == b"789"
    (tmp_path / "log-latest.txt").write_bytes(b"abc")
    assert rundir.read_latest_log(tmp_path) == b"abc"
