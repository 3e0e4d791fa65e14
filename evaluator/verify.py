"""Scores some windows of a finished run again, the plain way, and tells how far apart both are.

Shares with the scoring code what finds models and reads texts, and nothing that computes: windows
are cut by loops of their own, the model's own forward gives whole logits, and each token's nll
comes from a float64 log-softmax. Slow on purpose.
"""

import argparse
import gzip
import hashlib
import json
import math
import random
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from evaluator.contract.env import SPOOL_DIR, WINDOWS_FILE, spool_name
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import Result, ScoringUsed, WindowRecord
from evaluator.digests import TEXTS_START
from evaluator.errors import EvaluatorError
from evaluator.figure.perplexity import exp_or_none
from evaluator.plain_windows import Piece, cut
from evaluator.session import choose_run_dir, read_spec

TOLERANCE = {"float32": 1e-6, "bfloat16": 2e-3, "float16": 2e-3}
"""Largest relative difference by dtype. In 16 bits the same product rounds otherwise when other
windows stand beside it."""
LEAST_NATS = 1.0
"""A window with less nll than this is compared as if it had so much."""
EXIT_DIFFERENT = 1
EXIT_IMPOSSIBLE = 3


class VerifyError(Exception):
    """The run can't be verified."""


@dataclass(frozen=True)
class WindowCheck:
    """A window, scored twice."""

    document: int
    begin: int
    num_scored: int
    job_nats: float
    reference_nats: float
    absolute: float
    relative: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came out, and against which limit."""

    ok: bool
    tolerance: float
    largest_absolute: float
    largest_relative: float
    num_windows: int
    num_windows_checked: int
    num_tokens_checked: int
    sample_perplexity: float | None
    """By the job; null where it exceeds float64."""
    sample_perplexity_reference: float | None
    windows: list[WindowCheck]


def read_result(run_dir: Path) -> Result:
    """The result in the spool of rank 0.

    Raises:
        VerifyError: There is none.
    """
    path = run_dir / SPOOL_DIR / spool_name(0)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        msg = f"{path} can't be read: {error.strerror}"
        raise VerifyError(msg) from error
    for line in reversed(lines):
        if '"type":"result"' in line:
            return Result.model_validate_json(line)
    msg = f"{path} has no result: only a job that succeeded can be verified"
    raise VerifyError(msg)


def read_records(run_dir: Path, result: Result) -> list[WindowRecord]:
    """The per-window records, which must be those of the result and sum to it.

    Raises:
        VerifyError: They are gone, damaged, or do not sum to the result.
    """
    path = run_dir / WINDOWS_FILE
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        msg = f"{path} can't be read: {error}"
        raise VerifyError(msg) from error
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if digest != result.windows_digest:
        msg = f"{path} has digest {digest}, but the result says {result.windows_digest}"
        raise VerifyError(msg)
    records = [WindowRecord.model_validate_json(line) for line in content.splitlines()]
    found = math.fsum(each.nll_nats for each in records), sum(each.num_scored for each in records)
    claimed = result.perplexity.nll_sum_nats, result.perplexity.num_scored_tokens
    if found != claimed:
        msg = f"the windows sum to {found} (nats, tokens), but the result says {claimed}"
        raise VerifyError(msg)
    return records


class Reference:
    """A model and its tokenizer, used in the plainest way.

    Raises:
        VerifyError: They are not those of the result.
    """

    def __init__(self, spec: LaunchSpec, device: str, result: Result) -> None:
        # Take seconds, which a wrong command line should not cost.
        import torch
        import transformers

        from evaluator.model.device import DTYPES
        from evaluator.model.files import find_model
        from evaluator.model.loading import load_tokenizer, silence_libraries
        from evaluator.text.tokens import digest_tokenizer

        silence_libraries()

        torch.set_num_threads(spec.launch.threads_per_rank)
        cache_dir = Path(spec.cache_dir) if spec.cache_dir else Path.home() / ".cache" / "assay"
        files = find_model(spec.model, cache_dir)
        folder = files.folder
        # Before they are loaded: files that have changed may be broken as well.
        check_same(result, {"model": files.digest()})
        self._tokenizer: Any = load_tokenizer(folder)
        check_same(result, {"tokenizer": digest_tokenizer(self._tokenizer)})
        self._torch = torch
        self._device = device
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[spec.launch.dtype],
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        self._model = model.eval().to(device)

    def encode(self, text: str, *, parse: bool) -> list[int]:
        """Token ids without any that the tokenizer adds by itself."""
        encoded = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=not parse, verbose=False
        )
        return list(encoded["input_ids"])

    def nll(self, piece: Piece) -> float:
        """Sum over the targets of -ln p, in nats."""
        torch = self._torch
        with torch.inference_mode():
            ids = torch.tensor([piece.inputs], device=self._device)
            logits = self._model(input_ids=ids, use_cache=False).logits[0]
            first = len(piece.inputs) - len(piece.targets)
            values = []
            for place, target in enumerate(piece.targets, start=first):
                log_p = torch.log_softmax(logits[place].double(), dim=-1)
                values.append(-float(log_p[target]))
        return math.fsum(values)


class Texts(NamedTuple):
    """What the windows were cut from."""

    by_index: dict[int, str]
    """The wanted documents, or the one stream."""
    digest: str
    """Of the whole data set, as in the result."""


def read_texts(spec: LaunchSpec, used: ScoringUsed, wanted: set[int]) -> Texts:
    """Read all documents, and keep those that are wanted."""
    from evaluator.data import read_documents

    source = spec.data.model_copy(update={"join": used.join})
    mirror_dir = Path(spec.mirror_dir) if spec.mirror_dir else None
    digest = hashlib.sha256(TEXTS_START)
    kept: dict[int, str] = {}
    for index, document in enumerate(read_documents(source, mirror_dir=mirror_dir)):
        text = document.text
        text = text.removesuffix("\n") if used.convention == "llama.cpp" else text
        encoded = text.encode()
        digest.update(struct.pack("<Q", len(encoded)) + encoded)
        if index in wanted:
            kept[index] = text
    return Texts(kept, f"sha256:{digest.hexdigest()}")


def check_same(result: Result, found: dict[str, str]) -> None:
    """Refuse other files than those that were scored: their numbers would say nothing.

    Args:
        result: Of the run.
        found: Digests by the name of what they are of: model, tokenizer, data.

    Raises:
        VerifyError: It names the first that differs, and both digests.
    """
    for name, digest in found.items():
        scored = getattr(result, f"{name}_digest")
        if digest != scored:
            msg = (
                f"the {name} has changed since the job: it has digest {digest} now, and the result "
                f"says {scored}; bring back the {name} that was scored, or run the job again"
            )
            raise VerifyError(msg)


def verify(spec: LaunchSpec, run_dir: Path, *, num_windows: int, seed: int, device: str) -> Verdict:
    """Score a sample of windows again.

    Args:
        spec: Of the run.
        run_dir: Where it left its spool and its records.
        num_windows: Most windows to score.
        seed: Of the sample.
        device: Where to score.

    Raises:
        VerifyError: Files are missing, damaged, or not those that were scored.
    """
    result = read_result(run_dir)
    records = read_records(run_dir, result)
    chosen = random.Random(seed)  # noqa: S311 - the sample has to come again for a seed
    sample = chosen.sample(records, min(num_windows, len(records)))
    used = result.scoring
    texts = read_texts(spec, used, {each.document for each in sample})
    check_same(result, {"data": texts.digest})
    reference = Reference(spec, device, result)
    checks: list[WindowCheck] = []
    for index, text in texts.by_index.items():
        ids = reference.encode(text, parse=used.special_tokens == "parse")
        pieces = {piece.begin: piece for piece in cut(ids, used)}
        for each in sample:
            if each.document == index:
                checks.append(_check(each, pieces.get(each.begin), reference))
    return conclude(checks, len(records), TOLERANCE[spec.launch.dtype])


def _check(record: WindowRecord, piece: Piece | None, reference: Reference) -> WindowCheck:
    if piece is None or len(piece.targets) != record.num_scored:
        msg = (
            f"document {record.document} has no window that scores {record.num_scored} tokens from "
            f"token {record.begin} on: has the text, the tokenizer or the convention changed?"
        )
        raise VerifyError(msg)
    nats = reference.nll(piece)
    if not math.isfinite(nats):
        msg = f"document {record.document}, token {record.begin}: the reference's nll is {nats}"
        raise VerifyError(msg)
    absolute = abs(record.nll_nats - nats)
    return WindowCheck(
        document=record.document,
        begin=record.begin,
        num_scored=record.num_scored,
        job_nats=record.nll_nats,
        reference_nats=nats,
        absolute=absolute,
        relative=absolute / max(abs(nats), LEAST_NATS),
    )


def conclude(checks: Sequence[WindowCheck], num_windows: int, tolerance: float) -> Verdict:
    """Sum up."""
    num_tokens = sum(each.num_scored for each in checks)
    largest = max(each.relative for each in checks)
    return Verdict(
        ok=largest < tolerance,
        tolerance=tolerance,
        largest_absolute=max(each.absolute for each in checks),
        largest_relative=largest,
        num_windows=num_windows,
        num_windows_checked=len(checks),
        num_tokens_checked=num_tokens,
        sample_perplexity=exp_or_none(math.fsum(each.job_nats for each in checks) / num_tokens),
        sample_perplexity_reference=exp_or_none(
            math.fsum(each.reference_nats for each in checks) / num_tokens
        ),
        windows=sorted(checks, key=lambda each: (each.document, each.begin)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdict as JSON; answers 0 where it is good, 1 where not, 3 without one."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluator.verify",
        description="Score some windows of a finished run again with a plain implementation.",
    )
    parser.add_argument("spec", type=Path, help="the run's spec.json")
    parser.add_argument("--run-dir", type=Path, help="folder of its reports and records")
    parser.add_argument("--windows", type=int, default=8, help="most windows to score (8)")
    parser.add_argument("--seed", type=int, default=0, help="chooses them (0)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    options = parser.parse_args(arguments)
    if options.windows < 1:
        parser.error("--windows must be at least 1")
    try:
        spec = read_spec(options.spec)
        verdict = verify(
            spec,
            choose_run_dir(options.spec, spec, options.run_dir),
            num_windows=options.windows,
            seed=options.seed,
            device=options.device,
        )
    except (VerifyError, EvaluatorError, ValidationError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_IMPOSSIBLE
    sys.stdout.write(json.dumps(asdict(verdict), allow_nan=False) + "\n")
    return 0 if verdict.ok else EXIT_DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
