import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from evaluator.errors import LossNotFinite
from evaluator.model.forward import cut_model
from evaluator.planning.plan import Batch, make_plan
from evaluator.planning.windows import PrefixPlace, Window, document_windows, lm_eval
from evaluator.scoring.score import Scorer, sum_windows, token_nll
from evaluator.text.tokens import TokenDocument


def reference_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -torch.log_softmax(logits.double(), -1).gather(-1, targets[:, None]).squeeze(-1)


def test_three_tokens_by_hand() -> None:
    # Odds 1 : 2 : 5 and 1 : 1 : 2.
    logits = torch.tensor([[1.0, 2.0, 5.0], [1.0, 1.0, 2.0]]).log()
    nll = token_nll(logits, torch.tensor([2, 0]))
    assert nll.dtype is torch.float64
    assert nll.tolist() == pytest.approx([math.log(8 / 5), math.log(4)], rel=1e-6)


@pytest.mark.parametrize("vocabulary", [2, 7, 320, 49_152, 262_144])
def test_equal_logits_give_the_vocabulary_size(vocabulary: int) -> None:
    logits = torch.full((3, vocabulary), -4.25)
    nll = token_nll(logits, torch.tensor([0, 1, vocabulary - 1]))
    perplexity = math.exp(math.fsum(nll.tolist()) / 3)
    assert perplexity == pytest.approx(vocabulary, rel=1e-12)


def test_deviation_from_float64_has_no_side() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(256, 49_152, generator=generator) + 10
    targets = torch.randint(0, 49_152, (256,), generator=generator)
    exact = reference_nll(logits, targets).sum().item()
    assert token_nll(logits.clone(), targets).sum().item() == pytest.approx(exact, rel=1e-8)
    # What is left out on purpose, and why.
    biased = -torch.log_softmax(logits, -1).gather(-1, targets[:, None]).double().sum().item()
    assert abs(biased - exact) > 20 * abs(token_nll(logits, targets).sum().item() - exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_logits_are_upcast(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(64, 1000, generator=generator)).to(dtype)
    targets = torch.randint(0, 1000, (64,), generator=generator)
    exact = reference_nll(logits, targets)
    assert token_nll(logits, targets).tolist() == pytest.approx(exact.tolist(), rel=1e-6)


@pytest.mark.parametrize("vocabulary", [320, 49_152, 262_144])
def test_threads_change_no_bit(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for num_positions in (1, 2, 3, 6):
        logits = 5 * torch.randn(num_positions, vocabulary, generator=generator)
        targets = torch.randint(0, vocabulary, (num_positions,), generator=generator)
        found = []
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            found.append(token_nll(logits.clone(), targets).tolist())
        torch.set_num_threads(1)
        assert found[0] == found[1]


def scorer_for(model: Any, *documents: list[int]) -> Scorer:
    return Scorer(
        forward=cut_model(model, 320).forward,
        documents={
            index: TokenDocument(
                index=index,
                place=f"row {index}",
                ids=np.asarray(ids, np.int32),
                num_bytes=1,
                num_words=1,
                num_replaced=0,
                highest_id=max(ids),
            )
            for index, ids in enumerate(documents)
        },
        prefix_token_id=0,
        device=torch.device("cpu"),
        dtype="float32",
    )


def nll_nats_of(scorer: Scorer, *windows: Window) -> tuple[float, ...]:
    return sum_windows(scorer.score(Batch(0, windows))).nll_nats


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def ids_of(num_tokens: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(2, 320, num_tokens).tolist()
    return ids


def test_windows_cost_what_full_logits_in_float64_say(tiny: Path) -> None:
    model = load(tiny)
    ids = ids_of(40, seed=1)
    scorer = scorer_for(model, ids)
    for window in document_windows(0, 40, lm_eval(16, PrefixPlace.FIRST)):
        ((nll_nats,), (squares,)) = sum_windows(scorer.score(Batch(0, (window,))))
        fed = [0] * window.prefixed + ids[window.begin : window.end - 1]
        with torch.inference_mode():
            logits = model(torch.tensor([fed])).logits[0, -window.num_scored :]
        targets = torch.tensor(ids[window.score_begin : window.end])
        exact = reference_nll(logits, targets)
        assert nll_nats == pytest.approx(exact.sum().item(), rel=1e-7)
        assert squares == pytest.approx(exact.square().sum().item(), rel=1e-6)


def test_nothing_is_computed_but_the_text_and_its_prefixes(tiny: Path) -> None:
    model = load(tiny)
    scorer = scorer_for(model, ids_of(100, seed=1), ids_of(7, seed=2))
    fed: list[int] = []
    through_head: list[int] = []

    def head(hidden_PD: torch.Tensor) -> torch.Tensor:
        through_head.append(len(hidden_PD))
        return scorer.forward.head(hidden_PD)

    model.base_model.register_forward_pre_hook(
        lambda _body, _args, inputs: fed.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    counting = replace(scorer, forward=replace(scorer.forward, head=head))
    windows = [
        window
        for document, num_tokens in enumerate((100, 7))
        for window in document_windows(document, num_tokens, lm_eval(16, PrefixPlace.FIRST))
    ]
    plan = make_plan(windows, batch_tokens=64, basis=b"")
    for batch in plan.batches:
        counting.score(batch)
    assert len(fed) == len(windows) == 8
    # 16 inputs a window (lm-eval fills the last one up to the left), 7 in the short document.
    assert sum(fed) == plan.facts.num_input_tokens == 7 * 16 + 7
    assert sum(through_head) == plan.facts.num_scored_tokens == 107


# One and two inputs were seen to be rounded otherwise in company.
@pytest.mark.parametrize("length", [1, 2, 3, 64])
def test_a_window_costs_the_same_in_any_company_and_any_slicing(tiny: Path, length: int) -> None:
    torch.set_num_threads(1)
    model = load(tiny)
    scorer = scorer_for(model, *(ids_of(64, seed) for seed in range(4)))
    windows = tuple(Window(index, 0, length, 0, prefixed=True) for index in range(4))
    together = nll_nats_of(scorer, *windows)
    alone = tuple(nll_nats_of(scorer, window)[0] for window in windows)
    assert together == alone
    sliced = replace(scorer, forward=replace(scorer.forward, slice_positions=16))
    assert nll_nats_of(sliced, *windows) == pytest.approx(together, rel=1e-9)


def test_an_all_zero_head_gives_the_vocabulary_size(tiny: Path) -> None:
    model = load(tiny)
    torch.nn.init.zeros_(model.lm_head.weight)
    scorer = scorer_for(model, ids_of(50, 0))
    (nll_nats,) = nll_nats_of(scorer, Window(0, 0, 50, 0, prefixed=True))
    assert math.exp(nll_nats / 50) == pytest.approx(320, rel=1e-12)


def test_a_loss_that_is_no_number_is_named_with_its_place(tiny: Path) -> None:
    scorer = scorer_for(load(tiny), [7] * 26, [5] * 20 + [300] + [5] * 5)
    plain = scorer.forward.head

    def head_without_word_300(hidden_PD: torch.Tensor) -> torch.Tensor:
        return plain(hidden_PD).index_fill(-1, torch.tensor([300]), -math.inf)

    scorer = replace(scorer, forward=replace(scorer.forward, head=head_without_word_300))
    windows = (
        Window(0, 0, 26, 0, prefixed=True),
        Window(1, 0, 26, 0, prefixed=True),
    )
    with pytest.raises(LossNotFinite, match=r"document 1 \(row 1\).* token 20 is inf in float32"):
        scorer.score(Batch(0, windows))
