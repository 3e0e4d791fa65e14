"""Perplexity by the book, to check the project's figure with: shares no code with it.

    python plain_perplexity.py MODEL.gguf DATA.jsonl WINDOW

Full logits of one window at a time, log-softmax in float64, lm-evaluation-harness' rolling windows.
Prints the summed nll in nats and the number of scored tokens as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    model_path, data_path, window = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    where: dict[str, Any] = {
        "pretrained_model_name_or_path": model_path.parent,
        "gguf_file": model_path.name,
    }
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    nll_sum, num_scored = 0.0, 0
    for line in data_path.read_text(encoding="utf-8").splitlines():
        text = json.loads(line)["text"]
        tokens = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        tokens = [tokenizer.bos_token_id, *tokens]
        done = 1  # the first token is given, not scored
        while done < len(tokens):
            end = min(done + window, len(tokens))
            start = max(0, end - 1 - window)
            fed = torch.tensor([tokens[start : end - 1]])
            with torch.inference_mode():
                logits = model(fed).logits[0].double()
            log_probabilities = torch.log_softmax(logits, dim=-1)
            for position in range(done, end):
                nll_sum -= float(log_probabilities[position - 1 - start, tokens[position]])
            num_scored += end - done
            done = end
    sys.stdout.write(json.dumps({"nll_sum_nats": nll_sum, "num_scored_tokens": num_scored}))


if __name__ == "__main__":
    main()
