"""A batch that does not fit, in a process whose memory is really limited."""

import json
import os
import subprocess
import sys
from pathlib import Path

from evaluator.contract.reports import Failure
from evaluator.contract.states import FailureReason
from tests.support.runs import ROOT, make_spec, read_spool
from tests.support.tiny import save_model, save_tokenizer, words

VOCABULARY_SIZE = 65_536
POSITIONS = 512
"""A whole slice of logits takes 134 MB, more than is left beside weights and a short warm-up."""

SCRIPT = """
import resource, sys
from pathlib import Path
import torch, transformers.models.llama.modeling_llama
from evaluator.contract.launch import LaunchSpec
from tests.support.runs import run_here

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 140_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
run_here(LaunchSpec.model_validate_json(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
"""


def test_a_batch_that_does_not_fit_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_model(model, vocab_size=VOCABULARY_SIZE)
    config_path = model / "config.json"
    config = json.loads(config_path.read_text()) | {"max_position_embeddings": POSITIONS}
    config_path.write_text(json.dumps(config))
    save_tokenizer(model)
    spec = make_spec(model, [words(1000)], scoring={"convention": "lm-eval", "window": POSITIONS})
    spec_path = tmp_path / "job.json"
    spec_path.write_text(spec.model_dump_json())
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(spec_path), str(run_dir)],
        cwd=ROOT,
        # Each thread would reserve address space of its own, or not, as they happen to run.
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    failures = [report for report in read_spool(run_dir) if isinstance(report, Failure)]
    assert [failure.reason for failure in failures] == [FailureReason.OUT_OF_MEMORY], done.stderr
    message = failures[0].message
    assert "rank 0 ran out of memory in batch 0" in message
    assert "with a single window" in message
    assert "smaller scoring.window" in message
