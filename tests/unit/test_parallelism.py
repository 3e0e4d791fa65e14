import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from transformers import GPT2Config, LlamaConfig, Phi3Config

from evaluator.contract.launch import Layout
from evaluator.contract.parallelism import Parallelism, ParallelismUsed, resolve
from evaluator.errors import ParallelismInvalid, WeightsInvalid
from evaluator.parallel.auto import Facts, choose
from evaluator.parallel.group import Place, ScoringGroup
from evaluator.parallel.loading import build_unread
from evaluator.parallel.parts import Part, Store, clip, find_name, open_store
from evaluator.parallel.tensor import find_problem, possible_ways, split_layers

GIB = 2**30
WIDTHS: dict[str, Any] = {"hidden_size": 72, "num_hidden_layers": 2, "vocab_size": 64}


@pytest.mark.parametrize(
    ("asked", "num_ranks", "ways"),
    [
        ({}, 6, (6, 1, 1, 1)),
        ({"tp": 2}, 6, (3, 1, 2, 1)),
        ({"tp": -1}, 6, (1, 1, 6, 1)),
        ({"dp_replicate": 2, "cp": -1}, 6, (2, 1, 1, 3)),
        ({"dp_replicate": 1, "dp_shard": 2, "tp": 3, "cp": 4}, 24, (1, 2, 3, 4)),
    ],
)
def test_the_rest_is_filled_in(
    asked: dict[str, int], num_ranks: int, ways: tuple[int, ...]
) -> None:
    parallelism = Parallelism.model_validate(asked)
    used = resolve(parallelism, num_ranks)
    assert (used.dp_replicate, used.dp_shard, used.tp, used.cp) == ways
    # What was left out is the same after the way through JSON.
    assert Parallelism.model_validate_json(parallelism.model_dump_json()) == parallelism


@pytest.mark.parametrize(
    ("asked", "num_ranks", "message"),
    [
        (
            {"dp_replicate": 1, "tp": 2},
            3,
            "dp_replicate 1 x dp_shard 1 x tp 2 x cp 1 is 2, but there are 3 ranks",
        ),
        ({"tp": 2}, 3, "tp 2 x cp 1 is 2, which does not divide 3 ranks"),
        ({"dp_shard": 2, "tp": 4}, 2, "is 8, which does not divide 2 ranks"),
    ],
)
def test_a_product_that_is_wrong_names_the_numbers(
    asked: dict[str, int], num_ranks: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(Parallelism.model_validate(asked), num_ranks)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"tp": -2}, "greater than or equal to -1"),
        ({"tp": -1, "cp": -1}, "tp and cp are -1"),
        ({"dp_replicate": -1, "cp": -1}, "dp_replicate and cp are -1"),
        ({"pp": 2}, "not permitted"),
        ("automatic", "Input should be 'auto'"),
    ],
)
def test_numbers_without_meaning_are_refused_in_one_sentence(asked: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        Layout.model_validate({"parallelism": asked})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("size", [0, 1, 7, 8, 50_257])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_parts_cover_everything_once_and_evenly(size: int, count: int) -> None:
    places = [Place(index=index, count=count) for index in range(count)]
    parts = [place.bounds(size) for place in places]
    assert [i for begin, end in parts for i in range(begin, end)] == list(range(size))
    assert places[0].sizes(size) == [end - begin for begin, end in parts]
    assert max(places[0].sizes(size)) - min(places[0].sizes(size)) <= 1


def test_places_of_ranks_in_groups() -> None:
    """Sixteen ranks, numbered along a mesh of two groups, outermost first."""
    used = ParallelismUsed(dp_replicate=2, dp_shard=2, cp=2, tp=2)
    lowest: dict[tuple[int, int], int] = {}
    for rank, (replicate, shard, cp, tp) in enumerate(itertools.product(range(2), repeat=4)):
        group = ScoringGroup(
            used=used,
            rank=rank,
            dp_shard=Place(index=shard, count=2),
            cp=Place(index=cp, count=2),
            tp=Place(index=tp, count=2),
            vocabulary=Place(index=2 * shard + tp, count=4),
        )
        assert (group.number, group.leads) == (replicate, rank in (0, 8))
        assert sorted([rank, *group.others]) == list(group.ranks_from(8 * replicate))
        assert group.speakers(range(16)) == [0, 8]
        # The first that has the same shard of the same part; cp and dp_replicate copy it.
        assert group.twin == lowest.setdefault((shard, tp), rank)
    # Where only positions are split, all have the same weights.
    whole = ScoringGroup(used=ParallelismUsed(cp=2), rank=1, cp=Place(index=1, count=2))
    assert whole.twin == 0


def test_ranges_are_clipped_by_their_joint_positions() -> None:
    ranges = [(10, 13), (20, 24)]
    laid = [10, 11, 12, 20, 21, 22, 23]
    for begin, end in itertools.combinations(range(len(laid) + 1), 2):
        found = [i for low, high in clip(ranges, begin, end) for i in range(low, high)]
        assert found == laid[begin:end]


def test_a_fused_tensor_is_split_piece_by_piece(tmp_path: Path) -> None:
    """Query, key and value of four heads of width 2; two ranks have two heads each."""
    whole = torch.arange(3 * 24, dtype=torch.float32).reshape(3, 24)
    save_file({"qkv": whole}, tmp_path / "model.safetensors")
    store = open_store(tmp_path)
    part = Part(dim=1, place=Place(index=1, count=2), num_pieces=3)
    found = store.read("qkv", [(1, 3)], part.ranges(24))
    query, key, value = whole[1:].split(8, dim=1)
    assert torch.equal(found, torch.cat([query[:, 4:], key[:, 4:], value[:, 4:]], dim=1))
    assert store.num_elements() == 72
    assert store.shape("qkv") == [3, 24]


def test_tensors_are_found_with_and_without_the_name_of_the_body() -> None:
    store = Store(Path(), {"wte.weight": "a", "lm_head.weight": "a"})
    assert find_name(store, ["transformer.wte.weight"], "transformer") == "wte.weight"
    tied = ["model.embed_tokens.weight", "lm_head.weight"]
    assert find_name(store, tied, "model") == "lm_head.weight"
    assert find_name(store, ["model.norm.weight"], "model") is None


def test_a_folder_without_a_list_of_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsInvalid, match=r"neither model\.safetensors\.index\.json"):
        open_store(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(WeightsInvalid, match="can't be read"):
        open_store(tmp_path)


def unread(config: Any) -> Any:
    return build_unread(config, torch.float32)


def test_a_model_is_built_without_its_weights_but_with_its_buffers() -> None:
    config = LlamaConfig(**WIDTHS, num_attention_heads=4, tie_word_embeddings=True)
    model = unread(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    frequencies = model.model.rotary_emb.inv_freq
    exponents = torch.arange(0, 18, 2) / 18
    assert torch.allclose(frequencies, 10_000.0**-exponents)
    # Building another one is not affected.
    assert not torch.nn.Linear(2, 2).weight.is_meta


@pytest.mark.parametrize(
    ("numbers", "ways", "message"),
    [
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 2, "9 attention heads and 3 key/va"),
        ({"num_attention_heads": 4, "num_key_value_heads": 1}, 2, "has 1 key/value heads"),
        ({"num_attention_heads": 6, "intermediate_size": 64}, 3, "has 64 inner width"),
        ({"num_attention_heads": 6, "intermediate_size": 66}, 3, None),
    ],
)
def test_heads_and_widths_that_do_not_divide_are_named(
    numbers: dict[str, int], ways: int, message: str | None
) -> None:
    problem = find_problem(LlamaConfig(**WIDTHS | numbers), ways)
    assert problem is None if message is None else message in str(problem)


def test_a_fused_layer_is_told_its_new_width() -> None:
    model = unread(GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=64))
    parts = split_layers(model, Place(index=0, count=2))
    attention = model.transformer.h[0].attn
    assert attention.split_size == 16
    assert attention.c_attn.nf == 48
    assert parts["transformer.h.0.attn.c_attn.weight"].ranges(96) == [(0, 16), (32, 48), (64, 80)]
    assert parts["transformer.h.0.mlp.c_proj.bias"].first_only


def test_a_plan_that_is_not_known_is_refused() -> None:
    model = unread(Phi3Config(**WIDTHS, num_attention_heads=4, pad_token_id=0))
    with pytest.raises(ParallelismInvalid, match="its plan has colwise_gather_output"):
        split_layers(model, Place(index=0, count=2))
    assert possible_ways(model, 8) == {1}


def test_ways_that_heads_and_widths_allow() -> None:
    heads = {"num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 64}
    assert possible_ways(unread(LlamaConfig(**WIDTHS | heads)), 8) == {1, 2, 4}


@pytest.mark.parametrize(
    ("weights_gib", "tp_ways", "ways", "why"),
    [
        (8, {1, 2}, (8, 1, 1), "(8.00 GiB) fit into what a rank may use for them (8.00 GiB)"),
        (9, {1, 2}, (4, 1, 2), "2 ranks are the fewest that hold them"),
        (9, {1}, (4, 2, 1), "2 ranks are the fewest that hold them"),
        (30, {1, 2}, (2, 2, 2), "4 ranks are the fewest"),
        (40, {1, 2, 4, 8}, (1, 2, 4), "8 ranks are the fewest"),
        (65, {1}, (1, 8, 1), "do not fit into what all 8 ranks may use"),
    ],
)
def test_auto_takes_the_smallest_group_that_holds_the_weights(
    weights_gib: int, tp_ways: set[int], ways: tuple[int, ...], why: str
) -> None:
    """Two nodes of four ranks, each with 10 GiB, of which weights may take 8."""
    facts = Facts(
        weights_bytes=weights_gib * GIB,
        memory_bytes=10 * GIB,
        num_ranks=8,
        ranks_per_node=4,
        tp_ways=frozenset(tp_ways),
    )
    used = choose(facts)
    assert (used.dp_replicate, used.dp_shard, used.tp) == ways
    assert why in used.reason
