"""What people see, from JSON that the server's own schemas wrote."""

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from app.api.schemas import JobView
from app.cli.render import describe_progress, print_end, print_job, print_list
from tests.api.factories import EFFICIENCY
from tests.support.fake_python import DIGEST

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
FIGURES = {
    "token_perplexity": 15.23456,
    "token_perplexity_standard_error": 0.4123,
    "token_perplexity_interval_95": (14.4473, 16.0648),
    "mean_nll_nats": 2.7236,
    "mean_nll_standard_error": 0.02706,
    "standard_error_clusters": "documents",
    "windows_per_block": None,
    "num_clusters": 21,
    "naive_standard_error": 0.0112,
    "bits_per_byte": 0.98764,
    "byte_perplexity": 1.98295,
    "word_perplexity": 58.30271,
    "word_rule": "split at whitespace",
    "num_words": 10_048,
    "nll_sum_nats": 40854.0,
    "num_scored_tokens": 15_000,
    "num_tokens": 15_021,
    "num_bytes": 61_440,
    "num_documents": 21,
    "num_windows": 44,
    "excluded_documents": {"empty": 2, "too_short": 0},
    "excluded_tokens": {"first_token": 21},
    "num_replaced": 0,
}
PLAN = {
    "digest": DIGEST,
    "num_documents": 21,
    "num_windows": 44,
    "num_batches": 21,
    "num_input_tokens": 15_021,
    "num_scored_tokens": 15_000,
}
SAMPLE = {
    "num_windows": 4,
    "num_unchecked_batches": 0,
    "tolerance": 0.0,
    "largest_difference": 0.0,
    "quarantined": [],
    "why_none": None,
}
TRAFFIC = {
    "num_inside": 3,
    "bytes_inside": 3000,
    "num_between": 0,
    "bytes_between": 0,
    "num_store": 40,
}
RESULT = {
    "perplexity": FIGURES,
    "nll_by_context": [
        {
            "first_context": 1,
            "last_context": 1,
            "num_scored_tokens": 40,
            "nll_sum_nats": 240.0,
            "mean_nll_nats": 6.0,
        },
        {
            "first_context": 256,
            "last_context": 511,
            "num_scored_tokens": 1200,
            "nll_sum_nats": 3600.0,
            "mean_nll_nats": 3.0,
        },
    ],
    "scoring": {
        "convention": "lm-eval",
        "window": 512,
        "stride": 512,
        "batch_tokens": 2048,
        "prefix": "bos",
        "prefix_token_id": 1,
        "prefix_place": "first",
        "special_tokens": "text",
        "join": None,
        "tail": None,
        "definition": "Every token is scored once.",
    },
    "plan": PLAN,
    "digests": dict.fromkeys(("model", "data", "tokenizer", "windows", "tokens"), DIGEST),
    "device": "cpu",
    "dtype": "float32",
    "threads_per_rank": 1,
    "world_size": 2,
    "parallelism": {"dp_replicate": 2, "dp_shard": 1, "tp": 1, "cp": 1, "reason": ""},
    "num_batches_resumed": 3,
    "scored_by": [
        {
            "attempt": 1,
            "node_rank": 0,
            "host": "alpha",
            "num_batches": 3,
            "num_windows": 9,
            "num_scored_tokens": 4608,
            "num_computed": 3,
        },
        {
            "attempt": 2,
            "node_rank": 0,
            "host": "alpha",
            "num_batches": 18,
            "num_windows": 35,
            "num_scored_tokens": 10_392,
            "num_computed": 21,
        },
    ],
    "audit": {"num_findings": 0, "findings": [], "sample": SAMPLE},
    "sync_error": 0.0,
    "traffic": TRAFFIC,
    "packed": None,
    "efficiency": EFFICIENCY,
    "wall_seconds": 65.4,
    "versions": {},
    "warnings": ["a [bold]warning\x1b[2J"],
}
RANK = {
    "rank": 0,
    "local_rank": 0,
    "load_seconds": 1.25,
    "tokenise_seconds": 0.5,
    "warm_up_seconds": 0.75,
    "compute_seconds": 20.0,
    "processor_seconds": 19.0,
    "wait_seconds": 4.0,
    "audit_seconds": 0.25,
    "communicate_seconds": 1.0,
    "wall_seconds": 30.0,
    "num_leases": 3,
    "expected_seconds": 19.0,
    "measured_seconds": 19.5,
    "num_out_of_memory": 0,
    "traffic": TRAFFIC,
    "work": {"num_forwards": 0, "num_fed_tokens": 0, "num_head_positions": 0},
    "limits": None,
    "num_batches": 11,
    "num_input_tokens": 8000,
    "num_scored_tokens": 7500,
    "peak_memory_bytes": 812_345_678,
    "device": "cpu",
    "stage": "reduce",
    "last_seen_at": NOW,
}
PROGRESS = {
    "stage": "score",
    "fraction": 0.42,
    "num_batches_done": 9,
    "num_batches": 21,
    "num_scored_tokens_done": 6300,
    "num_scored_tokens": 15_000,
    "tokens_per_second": 600.0,
    "eta_seconds": 14.5,
}
ATTEMPT = {
    "number": 1,
    "created_at": NOW,
    "started_at": NOW,
    "ended_at": NOW,
    "reason": None,
    "message": None,
    "exit_code": None,
    "signal": None,
}


def make_job(**changes: Any) -> dict[str, Any]:
    names = ("self", "cancel", "retry", "events", "logs", "nodes", "result", "windows")
    job = {
        "id": "job_1",
        "project": "default",
        "state": "succeeded",
        "is_terminal": True,
        "state_reason": None,
        "message": None,
        "priority": 0,
        "labels": {"branch": "main"},
        "attempt": 1,
        "attempts_left": 2,
        "created_at": NOW,
        "updated_at": NOW,
        "started_at": NOW,
        "deadline_at": None,
        "ended_at": None,
        "progress": PROGRESS,
        "links": dict.fromkeys(names, "/v1/jobs/job_1"),
        "request": {
            "model": {"kind": "hub", "name": "m"},
            "data": {"kind": "inline", "documents": ["x"]},
        },
        "attempts": [ATTEMPT],
        "nodes": [{"node_rank": 0, "host": "alpha", "ranks": [RANK, RANK | {"rank": 1}]}],
        "result": RESULT,
    } | changes
    loaded: dict[str, Any] = json.loads(JobView.model_validate(job).model_dump_json())
    return loaded


def make_console(*, on_terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=200, force_terminal=on_terminal, highlight=False, markup=False
    )


def text_of(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_result_shows_figures_conditions_and_ranks() -> None:
    console = make_console()
    print_end(console, make_job())
    text = text_of(console)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "",
        "token perplexity 15.23 ± 0.41",
        "95 % interval 14.45 to 16.06, from 21 documents",
        "bits per byte 0.9876 ± 0.0098",
        "word perplexity 58.3027",
        "scored tokens 15,000 of 15,021",
        "text 21 documents, 44 windows, 61.4 kB",
        "excluded 2 documents: empty",
        "not scored 21 tokens: first token",
        "",
        "convention lm-eval, window 512, stride 512, prefix bos",
        "Every token is scored once.",
        "computed on cpu, float32, 2 ranks of 1 thread",
        "time 1 min 05 s, 600 scored tokens/s",
        "efficiency 60 GFLOP/s a rank, 75 % of its peak; 1.0 GB/s of weights, 10 % of its "
        "bandwidth; bound by compute",
        "taken over 3 batches of earlier attempts",
        "",
        "Times in seconds, peak memory, by rank",
        "node rank load tokenise warm-up compute audit wait communicate tokens tokens/s peak",
        "0 alpha 0 1.25 0.50 0.75 20.00 0.25 4.00 1.00 7,500 300 812 MB",
        "0 alpha 1 1.25 0.50 0.75 20.00 0.25 4.00 1.00 7,500 300 812 MB",
        "",
        "Scored, by attempt and node",
        "attempt node batches windows tokens computed",
        "1 0 alpha 3 9 4,608 3",
        "2 0 alpha 18 35 10,392 21",
        "Mean nll by tokens before the scored one",
        "context (tokens) scored tokens mean nll (nats)",
        f"1 40 6.0000 {'█' * 30}",
        f"256 to 511 1,200 3.0000 {'█' * 15}",
        "Warning: a [bold]warning [2J",
    ]


def test_an_unknown_efficiency_says_why() -> None:
    unknown = dict.fromkeys(EFFICIENCY) | {"why_unknown": "ranks share the model"}
    counts = {name: 0 for name in EFFICIENCY if name.startswith("num_")}
    console = make_console()
    print_end(console, make_job(result=RESULT | {"efficiency": unknown | counts}))
    lines = [" ".join(line.split()) for line in text_of(console).splitlines()]
    assert "efficiency not known: ranks share the model" in lines


def test_findings_of_the_audit_are_shown() -> None:
    console = make_console()
    audit = {"num_findings": 2, "findings": [], "sample": SAMPLE}
    print_end(console, make_job(result=RESULT | {"audit": audit}))
    assert "Audit: 2 repetitions of a batch gave other numbers" in text_of(console)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (
            {"document": 3, "begin": 62, "nll_nats": 61.5, "nll_nats_by_others": None},
            "(not repeatable): document 3, token 62 on: 61.5 nats, others say None. Its",
        ),
        (None, "(not repeatable). Its 1,200 batches were scored again"),
    ],
)
def test_a_rank_that_was_wrong_is_named(window: object, expected: str) -> None:
    suspect = {
        "author": {"attempt": 1, "rank": 5, "node_rank": 2, "host": "there"},
        "ranks": [5],
        "reason": "not_repeatable",
        "window": window,
        "num_batches": 1200,
    }
    audit = {"num_findings": 0, "findings": [], "sample": SAMPLE | {"quarantined": [suspect]}}
    console = make_console()
    print_end(console, make_job(result=RESULT | {"audit": audit}))
    text = text_of(console)
    assert f"Audit: rank 5 on node 2 there was wrong in attempt 1 {expected}" in text


def test_the_nll_by_context_is_a_chart_from_zero() -> None:
    console = make_console()
    print_end(console, make_job())
    lines = text_of(console).splitlines()
    (first,) = (line.split() for line in lines if line.split()[:2] == ["1", "40"])
    (last,) = (line.split() for line in lines if line.split()[:3] == ["256", "to", "511"])
    assert first == ["1", "40", "6.0000", "\u2588" * 30]
    assert last == ["256", "to", "511", "1,200", "3.0000", "\u2588" * 15]


def test_away_from_a_terminal_there_are_no_control_codes() -> None:
    console = make_console()
    print_job(console, make_job(message="\x1b]0;title\x07"))
    print_list(console, {"items": [], "next_cursor": "abc"})
    text = text_of(console)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "No jobs.\nMore: repeat with --cursor abc" in text


def test_terminal_gets_colours() -> None:
    console = make_console(on_terminal=True)
    print_job(console, make_job())
    assert "\x1b[1;32msucceeded" in text_of(console)


def test_one_cluster_has_no_interval() -> None:
    figures = FIGURES | {
        "token_perplexity_standard_error": None,
        "token_perplexity_interval_95": None,
        "mean_nll_standard_error": None,
        "num_clusters": 1,
    }
    console = make_console()
    print_end(console, make_job(result=RESULT | {"perplexity": figures}))
    text = text_of(console)
    assert "token perplexity  15.2346\n" in text
    assert "none: two documents are needed, there is 1" in text


def test_failed_job_says_why_and_where_to_look() -> None:
    job = make_job(
        state="failed",
        state_reason="out_of_memory",
        message="rank 1 on alpha ran out of memory: use fewer batch_tokens",
        attempts=[ATTEMPT | {"reason": "out_of_memory", "signal": 9, "message": "rank 1"}],
        result=None,
    )
    console = make_console()
    print_end(console, job)
    assert text_of(console) == (
        "Job job_1 failed (out_of_memory): rank 1 on alpha ran out of memory: use fewer "
        "batch_tokens\nThe log: assay logs job_1"
    )
    console = make_console()
    print_job(console, job)
    last = text_of(console).splitlines()[-1]
    assert " ".join(last.split()) == (
        "1 2026-03-01 12:00:00 2026-03-01 12:00:00 out_of_memory signal 9 rank 1"
    )


def test_running_job_shows_progress_and_ranks() -> None:
    console = make_console()
    print_job(console, make_job(state="running", is_terminal=False, result=None))
    text = text_of(console)
    assert "score, 42 %, 9/21 batches, 600 tokens/s, ETA 15 s" in text
    assert "812 MB" in text


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"stage": None, "fraction": None, "num_batches": None}, "waiting"),
        ({"stage": "warm_up", "fraction": 0.0}, "warm up, 0 %, 9/21 batches"),
    ],
)
def test_progress_before_there_is_a_speed(known: dict[str, Any], words: str) -> None:
    progress = PROGRESS | {"tokens_per_second": None, "eta_seconds": None} | known
    assert describe_progress(progress) == words
