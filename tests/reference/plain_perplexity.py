"""Perplexity the plain way: whole logits, float64 log-softmax, one window at a time.

Shares no code with the evaluator and imports nothing of it, so that agreement means something.
Run: python tests/reference/plain_perplexity.py MODEL_FOLDER TEXT_FILE lm-eval 512
     python tests/reference/plain_perplexity.py MODEL_FOLDER TEXT_FILE hf-strided 512 256
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Request = tuple[list[int], list[int]]
"""Inputs of a forward, and the tokens that count: the last one follows the last input."""

CONVENTIONS = ["lm-eval", "hf-strided", "gptq", "llama.cpp", "document"]


def lm_eval_requests(tokens: list[int], length: int, prefix: int | None) -> Iterator[Request]:
    """Every token once, with `length` inputs at most; the last request reaches back for more."""
    sequence = tokens if prefix is None else [prefix, *tokens]
    position = 1
    while position < len(sequence):
        stop = min(position + length, len(sequence))
        start = max(0, stop - 1 - length)
        yield sequence[start : stop - 1], sequence[position:stop]
        position = stop


def lm_eval_every_requests(tokens: list[int], length: int, prefix: int) -> Iterator[Request]:
    """The same with the prefix in front of each request, as one of its `length` inputs."""
    first = tokens[:length]
    yield [prefix, *first[:-1]], first
    position = length
    while position < len(tokens):
        stop = min(position + length - 1, len(tokens))
        yield [prefix, *tokens[stop - length : stop - 1]], tokens[position:stop]
        position = stop


def hf_strided_requests(tokens: list[int], length: int, stride: int) -> Iterator[Request]:
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


def gptq_requests(tokens: list[int], length: int, *, keep: bool = False) -> Iterator[Request]:
    """Chunks that do not overlap, each scored but for its first token."""
    num_chunks = math.ceil(len(tokens) / length) if keep else len(tokens) // length
    for number in range(num_chunks):
        chunk = tokens[number * length : (number + 1) * length]
        if len(chunk) > 1:
            yield chunk[:-1], chunk[1:]


def llama_cpp_requests(tokens: list[int], length: int, bos: int | None) -> Iterator[Request]:
    """Chunks that do not overlap; logits from the middle one to the last but one are used."""
    for number in range(len(tokens) // length):
        chunk = tokens[number * length : (number + 1) * length]
        inputs = chunk if bos is None else [bos, *chunk[1:]]
        yield inputs[:-1], chunk[length // 2 + 1 :]


def nll_of(model: Any, inputs: list[int], targets: list[int]) -> list[float]:
    """Negative log likelihood of the last tokens, all in float64 from the logits on."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([inputs]), use_cache=False).logits[0]
    log_probabilities = torch.log_softmax(logits[-len(targets) :].double(), dim=-1)
    picked = log_probabilities[torch.arange(len(targets)), torch.tensor(targets)]
    values: list[float] = (-picked).tolist()
    return values


def own_bos(tokenizer: Any) -> int | None:
    """BOS where the tokenizer itself puts it in front of a text."""
    bos: int | None = tokenizer.bos_token_id
    return bos if bos is not None and tokenizer("a")["input_ids"][0] == bos else None


def requests_of(
    tokenizer: Any, texts: list[str], convention: str, length: int, stride: int = 0
) -> Iterator[Request]:
    """All forwards of a convention with what it does by itself."""

    def encode(text: str) -> list[int]:
        encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        ids: list[int] = encoded["input_ids"]
        return ids

    bos = own_bos(tokenizer)
    start = [] if bos is None else [bos]
    if convention == "gptq":
        yield from gptq_requests(start + encode("\n\n".join(texts)), length)
    elif convention == "llama.cpp":
        joined = "".join(texts)
        text = joined[:-1] if joined[-1] == "\n" else joined
        yield from llama_cpp_requests(start + encode(text), length, bos)
    else:
        for text in texts:
            tokens = encode(text)
            if convention == "hf-strided":
                yield from hf_strided_requests(tokens, length, stride)
            elif convention == "document":
                sequence = tokens
                if tokenizer.bos_token_id is not None:
                    sequence = [tokenizer.bos_token_id, *tokens]
                if 1 < len(sequence) <= length + 1:
                    yield sequence[:-1], sequence[1:]
            else:
                prefix = tokenizer.bos_token_id
                yield from lm_eval_requests(
                    tokens, length, tokenizer.eos_token_id if prefix is None else prefix
                )


def evaluate(
    folder: Path | str, texts: list[str], convention: str, length: int, stride: int = 0
) -> dict[str, Any]:
    """Total nll in nats, scored tokens, perplexity and naive error of several documents."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return evaluate_requests(folder, requests_of(tokenizer, texts, convention, length, stride))


def evaluate_requests(folder: Path | str, requests: Iterable[Request]) -> dict[str, Any]:
    """The same of forwards that are cut already."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    values: list[float] = []
    for inputs, targets in requests:
        values += nll_of(model, inputs, targets)
    total, count = math.fsum(values), len(values)
    mean = total / count
    variance = math.fsum((value - mean) ** 2 for value in values) / count
    return {
        "nll_sum_nats": total,
        "num_scored_tokens": count,
        "perplexity": math.exp(mean),
        "naive_standard_error": math.sqrt(variance / (count - 1)) if count > 1 else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity the plain way.")
    parser.add_argument("folder")
    parser.add_argument("text", type=Path)
    parser.add_argument("convention", choices=CONVENTIONS)
    parser.add_argument("length", type=int)
    parser.add_argument("stride", type=int, nargs="?", default=0)
    options = parser.parse_args()
    texts = [options.text.read_text(encoding="utf-8")]
    value = evaluate(options.folder, texts, options.convention, options.length, options.stride)
    sys.stdout.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
