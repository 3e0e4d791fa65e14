"""Memory and speed of tokenising a text file that is larger than memory should get."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from tests.support.tiny import save_tokenizer, words

SIZE_BYTES = 2 * 10**9
MEMORY_BYTES = 600 * 10**6

CHILD = """
import json, resource, sys
from pathlib import Path
from transformers import AutoTokenizer
from evaluator.contract.data import TextData
from evaluator.text.corpus import load_corpus
from evaluator.data.long_text import long_document

path, tokenizer, cache_dir = sys.argv[1:]
document = long_document(TextData(kind="text", path=path))
corpus = load_corpus(
    lambda: [document],
    AutoTokenizer.from_pretrained(tokenizer),
    "text",
    tokenizer_digest="bench",
    cache_dir=Path(cache_dir),
)
# Linux counts in KiB.
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"num_tokens": len(corpus.documents[0].ids), "peak_bytes": peak_bytes}))
"""


def write_text(path: Path) -> None:
    """Different words in each block, so that nothing is found in a cache of words alone."""
    with path.open("w") as file:
        seed = 0
        while file.tell() < SIZE_BYTES:
            block = words(100_000, seed=seed) + f"\n{seed}\n"
            for _ in range(20):
                file.write(block)
            seed += 1


def test_a_large_file_is_tokenised_in_little_memory(tmp_path: Path) -> None:
    text = tmp_path / "large.txt"
    write_text(text)
    save_tokenizer(tmp_path / "tokenizer")
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, text, tmp_path / "tokenizer", tmp_path / "cache"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3 * 3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {
        **json.loads(done.stdout),
        "size_bytes": text.stat().st_size,
        "wall_s": time.monotonic() - begin,
        "machine": platform.platform(),
        "num_cores": os.cpu_count(),
    }
    (tmp_path / "tokenising.json").write_text(json.dumps(figures, indent=1))
    assert figures["peak_bytes"] < MEMORY_BYTES, figures
