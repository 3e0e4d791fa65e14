"""Perplexity the plain way: whole logits, float64 log-softmax, one window at a time.

Shares no code with the evaluator and imports nothing of it, so that agreement means something.
Run: python tests/reference/plain_perplexity.py MODEL_FOLDER TEXT_FILE rolling 512
     python tests/reference/plain_perplexity.py MODEL_FOLDER TEXT_FILE strided 512 256
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Request = tuple[list[int], list[int]]
"""Inputs of a forward, and the tokens that count: the last one follows the last input."""


def rolling_requests(tokens: list[int], length: int, prefix: int) -> Iterator[Request]:
    """Every token once, with `length` inputs at most; the last request reaches back for more."""
    sequence = [prefix, *tokens]
    position = 1
    while position < len(sequence):
        stop = min(position + length, len(sequence))
        start = max(0, stop - 1 - length)
        yield sequence[start : stop - 1], sequence[position:stop]
        position = stop


def strided_requests(tokens: list[int], length: int, stride: int) -> Iterator[Request]:
    """The sliding window of the Hugging Face guide, with every target counted."""
    previous_end = 0
    for begin in range(0, len(tokens), stride):
        end = min(begin + length, len(tokens))
        num_targets = min(end - previous_end, end - begin - 1)
        if num_targets > 0:
            yield tokens[begin : end - 1], tokens[end - num_targets : end]
        previous_end = end
        if end == len(tokens):
            return


def nll_of(model: Any, inputs: list[int], targets: list[int]) -> float:
    """Negative log likelihood of the last tokens, all in float64 from the logits on."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([inputs]), use_cache=False).logits[0]
    log_probabilities = torch.log_softmax(logits[-len(targets) :].double(), dim=-1)
    picked = log_probabilities[torch.arange(len(targets)), torch.tensor(targets)]
    return float(-picked.sum())


def evaluate(
    folder: Path | str, texts: list[str], convention: str, length: int, stride: int = 0
) -> dict[str, Any]:
    """Total nll in nats, scored tokens and perplexity of several documents."""
    torch.set_num_threads(1)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    total, count = 0.0, 0
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        tokens = encoded["input_ids"]
        if convention == "rolling":
            requests = rolling_requests(tokens, length, tokenizer.bos_token_id)
        else:
            requests = strided_requests(tokens, length, stride)
        for inputs, targets in requests:
            total += nll_of(model, inputs, targets)
            count += len(targets)
    return {
        "nll_sum_nats": total,
        "num_scored_tokens": count,
        "perplexity": math.exp(total / count),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity the plain way.")
    parser.add_argument("folder")
    parser.add_argument("text", type=Path)
    parser.add_argument("convention", choices=["rolling", "strided"])
    parser.add_argument("length", type=int)
    parser.add_argument("stride", type=int, nargs="?", default=0)
    options = parser.parse_args()
    texts = [options.text.read_text(encoding="utf-8")]
    value = evaluate(options.folder, texts, options.convention, options.length, options.stride)
    sys.stdout.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
