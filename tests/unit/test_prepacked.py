"""Packed weights: the same products, the same digest."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from evaluator.model.forward import cut_model
from evaluator.model.loading import digest_weights
from evaluator.model.prepacked import PackedLinear, pack

needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="the processor has no bfloat16"
)


def llama(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=144, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attention_bias=True,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype).eval().requires_grad_(requires_grad=False)


def num_packed(model: Any) -> int:
    return sum(isinstance(module, PackedLinear) for module in model.modules())


@needs_bf16
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64, 511, 513])
@pytest.mark.parametrize(("width", "out"), [(64, 64), (576, 1536), (100, 37)])
def test_a_packed_layer_changes_no_bit(width: int, out: int, rows: int) -> None:
    plain = nn.Linear(width, out).bfloat16().requires_grad_(requires_grad=False)
    inputs = torch.randn(2, rows, width).bfloat16()
    with torch.inference_mode():
        assert torch.equal(PackedLinear(plain)(inputs), plain(inputs))


@needs_bf16
def test_a_body_is_packed_and_keeps_its_logits_and_its_digest() -> None:
    model = llama(torch.bfloat16)
    ids = torch.randint(0, 320, (1, 50))
    with torch.inference_mode():
        before = model(ids, use_cache=False).logits
        digest = digest_weights(model)
        forward = cut_model(model, 320).forward
        assert num_packed(model) == 2 * 7
        assert torch.equal(forward.head(forward.hidden(ids)[0]), before[0])
        assert digest_weights(model) == digest


@needs_bf16
def test_the_digest_sees_a_changed_bit_of_a_packed_weight() -> None:
    first, second = llama(torch.bfloat16), llama(torch.bfloat16)
    second.model.layers[1].mlp.up_proj.weight.view(torch.int16)[3, 5] ^= 1
    for model in (first, second):
        pack(model.base_model)
    assert digest_weights(first) != digest_weights(second)


def test_float32_stays_plain() -> None:
    model = llama(torch.float32)
    pack(model.base_model)
    assert num_packed(model) == 0
