"""What forwards cost, against torch's own counter; and what is made of it, worked by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    Qwen2Config,
)

from evaluator.contract.efficiency import Limits, Work
from evaluator.contract.reports import RankTiming
from evaluator.figure.efficiency import efficiency
from evaluator.model.cost import Cost, Counter, Counts, Unknown, model_cost, work_of
from evaluator.model.limits import measure_limits
from tests.support.runs import make_spec, run_here
from tests.support.tiny import words

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2),
    "wide heads": LlamaConfig(**SIZES, num_attention_heads=4, head_dim=16),
    "qwen2": Qwen2Config(
        **SIZES, num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True
    ),
    "gpt2": GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2),
}


def make(config: Any) -> Any:
    # Eager attention, whose two products torch's counter knows on a CPU.
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_operations_are_those_that_torch_counts(name: str) -> None:
    model = make(CONFIGS[name])
    cost = model_cost(model)
    assert isinstance(cost, Cost)
    for shape in ((1, 7), (2, 20)):
        counter = Counter()
        with FlopCounterMode(display=False) as flops, torch.inference_mode(), counter.keeping():
            model(input_ids=torch.ones(shape, dtype=torch.long), use_cache=False)
            counter.saw_forward(*shape)
            counter.saw_slice(shape[0] * shape[1])
        assert cost.operations(counter.kept) == flops.get_total_flops() > 0


def test_the_bytes_of_weights_are_those_of_matrices_by_forward_and_slice() -> None:
    cost = model_cost(make(CONFIGS["gpt2"]).to(torch.bfloat16))
    assert isinstance(cost, Cost)
    body_weights = 2 * (32 * 96 + 32 * 32 + 32 * 128 + 128 * 32)
    counts = Counts(num_forwards=3, num_slices=5, num_tokens=11, num_positions=7)
    assert cost.weight_bytes(counts) == 2 * (3 * body_weights + 5 * 96 * 32)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            MixtralConfig(
                **SIZES, num_attention_heads=4, num_key_value_heads=2, num_local_experts=2
            ),
            "MixtralForCausalLM routes tokens to experts",
        ),
        (
            MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=1),
            "MambaForCausalLM has layers that are no attention",
        ),
    ],
)
def test_a_model_that_the_formula_does_not_fit_is_not_guessed_at(config: Any, why: str) -> None:
    cost = model_cost(AutoModelForCausalLM.from_config(config))
    assert cost == Unknown(why)
    assert work_of(Counts(num_forwards=1, num_tokens=3), cost) == Work(
        num_forwards=1, num_fed_tokens=3
    )


def test_what_is_not_for_the_figure_is_not_counted() -> None:
    counter = Counter()
    counter.saw_forward(1, 9)
    with counter.keeping():
        counter.saw_forward(2, 5)
        counter.saw_slice(4)
    counter.saw_slice(9)
    assert counter.kept == Counts(
        num_forwards=1, num_tokens=10, num_pairs=50, num_slices=1, num_positions=4
    )


def timing(
    *,
    compute_s: float = 4.0,
    wait_s: float = 0.5,
    operations: float = 240.0,
    read: float = 30.0,
    fed: int = 100,
    processor_s: float = 7.0,
) -> RankTiming:
    """Of a rank that could do 100 operations and read 20 bytes a second."""
    work = Work(
        num_forwards=2,
        num_fed_tokens=fed,
        num_head_positions=60,
        operations=operations,
        weight_bytes=read,
    )
    return RankTiming(
        rank=0,
        local_rank=0,
        node_rank=0,
        compute_s=compute_s,
        processor_s=processor_s,
        wait_s=wait_s,
        communicate_s=0.5,
        num_input_tokens=90,
        num_scored_tokens=50,
        work=work,
        limits=Limits(operations_per_second=100.0, bytes_per_second=20.0),
    )


def test_rates_are_of_the_seconds_in_which_ranks_computed() -> None:
    found = efficiency([timing(), timing(compute_s=6.0, operations=360.0, read=20.0)], None, 2)
    assert (found.num_forwards, found.num_fed_tokens, found.num_head_positions) == (4, 200, 120)
    assert found.operations_per_second == (240 + 360) / 10
    assert found.peak_operations_per_second == 100
    assert found.peak_share == 600 / 1000
    assert found.bytes_per_second == 5
    assert found.bandwidth_share == 50 / 200
    assert found.waiting_share == 2 / 12
    assert found.processor_share == 14 / (2 * 10)
    assert found.padding_share == 20 / 200
    assert found.fed_tokens_per_scored_token == 200 / 100
    assert (found.bound, found.why_unknown) == ("compute", None)


@pytest.mark.parametrize(
    ("changed", "bound"),
    [
        ({"read": 60.0}, "memory"),
        ({"operations": 100.0, "read": 10.0}, "overhead"),
        ({"wait_s": 4.0}, "waiting"),
        ({"processor_s": 5.0}, "contention"),
    ],
)
def test_what_bounds_a_run(changed: dict[str, Any], bound: str) -> None:
    assert efficiency([timing(**changed)], None, 2).bound == bound


def test_unknown_operations_leave_counts_and_a_reason() -> None:
    found = efficiency([timing()], "ranks share the model", 2)
    assert (found.num_fed_tokens, found.why_unknown) == (100, "ranks share the model")
    assert (found.operations_per_second, found.peak_share, found.bound) == (None, None, None)


def test_nothing_to_score_is_no_division() -> None:
    found = efficiency([RankTiming(rank=0, local_rank=0, node_rank=0)], None, 1)
    assert found.why_unknown == "earlier attempts had scored everything"
    assert (found.padding_share, found.waiting_share, found.bound) == (None, None, None)


def test_limits_are_those_of_a_product_and_of_reading() -> None:
    # Bytes that begin in the middle of a word, as those of a mapped file may.
    weight = torch.ones(70_001, dtype=torch.bfloat16)[1:].view(700, 100)
    limits = measure_limits(weight)
    # From a slow phone's to a hundred times what a core does today.
    assert 1e7 < limits.operations_per_second < 1e14
    assert 1e7 < limits.bytes_per_second < 1e13


def test_a_run_tells_its_efficiency(tiny: Path, tmp_path: Path) -> None:
    scoring = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}
    result = run_here(make_spec(tiny, [words(60)], scoring=scoring), tmp_path)
    found = result.efficiency
    assert found.num_forwards == result.plan.num_windows
    assert found.num_fed_tokens == result.plan.num_input_tokens
    assert found.num_head_positions == result.plan.num_scored_tokens
    assert (found.padding_share, found.why_unknown) == (0, None)
    assert found.peak_share is not None
    assert found.peak_share > 0
