"""Peak memory and time of the ways to share a model, on two ranks of this machine."""

import json
import os
import platform
from pathlib import Path

from tests.distributed.test_parallel import name_of, run_all, spec_line
from tests.support.tiny import save_family, words

WIDTHS = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 40,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
}
WAYS: tuple[dict[str, int], ...] = ({"dp_replicate": 2}, {"tp": 2}, {"dp_shard": 2}, {"cp": 2})


def test_memory_and_time(tmp_path: Path) -> None:
    small = save_family(tmp_path / "small", "llama")
    big = save_family(tmp_path / "big", "llama", **WIDTHS)
    weights_bytes = (big / "model.safetensors").stat().st_size
    scoring = {"convention": "lm-eval", "window": 256}
    rows = {}
    for ways in WAYS:
        name = name_of("big", ways)
        # One launch for each: the peak of a process never falls.
        runs = run_all(
            tmp_path / name,
            [
                spec_line(small, "before", ways, texts=[words(20)]),
                spec_line(big, name, ways, texts=[words(2000)], scoring=scoring),
            ],
            2,
        )
        before, after = runs.timings("before"), runs.timings(name)
        rows[name] = {
            "peak_share": max(
                (big_one.peak_memory_bytes - base.peak_memory_bytes) / weights_bytes
                for base, big_one in zip(before, after, strict=True)
            ),
            "load_s": max(timing.load_s for timing in after),
            "compute_s": max(timing.compute_s for timing in after),
            "num_input_tokens": sum(timing.num_input_tokens for timing in after),
        }
    machine = {"machine": platform.platform(), "num_cores": os.cpu_count()}
    print(json.dumps({"weights_bytes": weights_bytes, **rows, **machine}, indent=1))  # noqa: T201
    assert rows["big-tp2"]["peak_share"] < rows["big-dp_replicate2"]["peak_share"]
