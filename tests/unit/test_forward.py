from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from evaluator.errors import ModelUnsupported
from evaluator.model.forward import LinearHead, OwnHead, cut_model, slice_positions

LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def gemma2() -> PreTrainedModel:
    config = Gemma2Config(
        **LLAMA_LIKE, head_dim=8, final_logit_softcapping=2.0, attn_logit_softcapping=5.0
    )
    return Gemma2ForCausalLM(config)


def granite() -> PreTrainedModel:
    return GraniteForCausalLM(GraniteConfig(**LLAMA_LIKE, logits_scaling=7.0))


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    )


def opt() -> PreTrainedModel:
    # Its embedding is narrower than its body, with a projection back before the head.
    config = OPTConfig(
        vocab_size=64,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=16,
    )
    return OPTForCausalLM(config)


def spread(model: PreTrainedModel) -> Any:
    """Larger weights, so that capping and scaling show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.eval()


@pytest.mark.parametrize("make", [gpt2, opt, gemma2, granite])
def test_the_cut_gives_the_models_own_logits_in_slices(make: Any) -> None:
    torch.manual_seed(0)
    model = spread(make())
    forward = cut_model(model, 64).forward
    ids = torch.randint(0, 64, (2, 30))
    with torch.inference_mode():
        own = model(ids, use_cache=False).logits
        hidden = forward.hidden(ids)
        cut = torch.stack(
            [torch.cat([forward.head(p).clone() for p in row.split(7)]) for row in hidden]
        )
    assert torch.allclose(cut, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("vocabulary_size", "expected"), [(320, 512), (49_152, 512), (262_144, 128), (2**26, 1)]
)
def test_a_slice_of_logits_stays_small(vocabulary_size: int, expected: int) -> None:
    assert slice_positions(vocabulary_size) == expected


def test_a_plain_head_writes_all_slices_into_the_same_memory(tiny: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny).eval()
    head = cut_model(model, 320).forward.head
    hidden = torch.randn(40, 32)
    with torch.inference_mode():
        places = {head(part).data_ptr() for part in hidden.split(13)}
        assert len(places) == 1
        assert torch.equal(head(hidden[13:26]), model.lm_head(hidden[13:26]))


def test_a_plain_head_is_used_as_it_is(tiny: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny).eval()
    cut = cut_model(model, 320)
    assert isinstance(cut.forward.head, LinearHead)
    assert cut.warnings == ()


@pytest.mark.parametrize("make", [gemma2, granite])
def test_a_head_that_does_more_is_found_and_told(make: Any) -> None:
    torch.manual_seed(0)
    model = spread(make())
    cut = cut_model(model, 64)
    assert isinstance(cut.forward.head, OwnHead)
    assert "changes its logits after the head" in cut.warnings[0]
    # The body is itself again after each use.
    with torch.inference_mode():
        cut.forward.head(torch.zeros(3, 32))
    assert "forward" not in vars(model.base_model)


def test_a_model_that_sees_later_tokens_is_refused() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    model: Any = BertLMHeadModel(config).eval()
    with pytest.raises(ModelUnsupported, match="BertLMHeadModel is not causal"):
        cut_model(model, 64)
