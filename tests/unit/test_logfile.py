from pathlib import Path

import pytest

from app.launchers.logfile import CappedLog, clean_lines, describe_signal, find_root_cause

# Printed by torchrun of torch 2.13 for a rank that was killed and for one that raised.
SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_18:20:17
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4012)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4012
======================================================
"""
SUMMARY_OF_EXCEPTION = """\
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 6177)  (SIGTERM)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_18:23:58
  host      : localhost
  rank      : 13 (local_rank: 1)
  exitcode  : 1 (pid: 6178) 
  error_file: /tmp/error.json
  traceback : Traceback (most recent call last):
    File "/tmp/rank.py", line 5, in main
      raise ValueError("bad window 17\\nsecond line")
  ValueError: bad window 17
  second line
  
============================================================
"""  # noqa: W291, W293 - as it is printed


def test_log_under_the_cap_is_whole(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log.txt", 1000)
    log.write(b"a\n" * 200)
    log.write(b"b\n" * 300)
    assert log.close()[-1] == "b"
    assert (tmp_path / "log.txt").read_bytes() == b"a\n" * 200 + b"b\n" * 300


def test_log_above_the_cap_keeps_both_ends_and_counts_the_rest(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log.txt", 1000)
    written = b"".join(b"%05d\n" % number for number in range(20_000))
    for start in range(0, len(written), 1234):
        log.write(written[start : start + 1234])
    tail = log.close()
    content = (tmp_path / "log.txt").read_bytes()
    assert len(content) <= 1000
    head, _, rest = content.partition(b"\n[")
    num_dropped, _, end = rest.partition(b" bytes of the log are left out here]\n")
    assert head == written[: len(head)]
    assert end == written[-len(end) :]
    assert end.startswith(b"199")
    assert len(head) + int(num_dropped) + len(end) == len(written)
    assert tail[-1] == "19999"


def test_log_only_grows(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log.txt", 1000)
    seen = b""
    for number in range(500):
        log.write(b"%d\n" % number)
        now = (tmp_path / "log.txt").read_bytes()
        assert now.startswith(seen)
        seen = now
    log.close()
    assert (tmp_path / "log.txt").read_bytes().startswith(seen)


def test_latest_output_is_shown_while_the_log_is_full(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log.txt", 1000)
    log.write(b"first\n")
    log.write_latest()
    assert not (tmp_path / "log-latest.txt").exists()
    log.write(b"x" * 2000 + b"\nlast\n")
    log.write_latest()
    assert (tmp_path / "log-latest.txt").read_bytes() == b"x" * 494 + b"\nlast\n"
    log.close()
    assert {path.name for path in tmp_path.iterdir()} == {"log.txt"}


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(b"", (), id="nothing"),
        pytest.param(b"\n", ("",), id="empty-line"),
        pytest.param(b"a\r\nb", ("a", "b"), id="dos-lines"),
        pytest.param(b"10%\r20%\rdone\n", ("done",), id="progress-bar"),
        pytest.param(b"10%\r20%\r\n", ("20%",), id="progress-bar-that-returns-at-its-end"),
        pytest.param(b"\x1b[1;31mred\x1b[m\x1b]8;;url\x1b\\link", ("redlink",), id="ansi"),
        pytest.param(b"a\0b\x1bc\x9b\tend", ("ab\ufffd\tend",), id="control"),
        pytest.param("\u2028x\x85y".encode(), ("xy",), id="unicode-line-ends"),
        pytest.param(b"\xed\xa0\x80", ("\ufffd\ufffd\ufffd",), id="surrogate"),
    ],
)
def test_output_becomes_clean_lines(data: bytes, lines: tuple[str, ...]) -> None:
    assert clean_lines(data) == lines


def test_last_lines_only() -> None:
    assert clean_lines(b"a\nb\nc\n", max_lines=2) == ("b", "c")


def test_root_cause_of_a_killed_rank() -> None:
    assert find_root_cause(SUMMARY.splitlines()) == "rank 1 was killed by signal 9 (SIGKILL)"


def test_root_cause_of_an_exception() -> None:
    lines = ["noise", *SUMMARY_OF_EXCEPTION.splitlines(), "noise"]
    assert find_root_cause(lines) == "rank 13 exited with code 1: ValueError: bad window 17"


@pytest.mark.parametrize("num_lines", range(6))
def test_summary_that_breaks_off_gives_no_cause(num_lines: int) -> None:
    assert find_root_cause(SUMMARY.splitlines()[:num_lines]) is None


def test_exit_code_without_a_traceback() -> None:
    text = SUMMARY.replace("-9 (pid: 4012)  (SIGKILL)", "7 (pid: 4012)")
    assert find_root_cause(text.splitlines()) == "rank 1 exited with code 7"


def test_unknown_signal_has_a_number() -> None:
    assert describe_signal(11) == "signal 11 (SIGSEGV)"
    assert describe_signal(250) == "signal 250"
