"""From the spec to everything that scoring needs: model, tokens, plan."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from evaluator.contract.launch import LaunchSpec
from evaluator.conventions import Convention, resolve_convention
from evaluator.data import read_documents
from evaluator.device import DTYPES
from evaluator.errors import DataEmpty
from evaluator.model import LoadedModel, load_model
from evaluator.model_files import find_model
from evaluator.perplexity import TextSize
from evaluator.plan import Plan, make_plan
from evaluator.tokens import Corpus, TokenDocument, check_ids, digest_tokenizer, tokenise
from evaluator.windows import Window, document_windows


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The model, and its digest as soon as it is known."""

    loaded: LoadedModel
    digest: "Future[str] | None"
    """None on ranks that leave the reading to the one that leads their node."""

    def wait_for_digest(self) -> str | None:
        """The digest once it is known; None where another rank reads it."""
        return None if self.digest is None else self.digest.result()


def load_weights(
    spec: LaunchSpec, device: torch.device, cache_dir: Path, *, digest: bool
) -> Weights:
    """Find and load the model; the digest is computed beside what follows.

    Raises:
        EvaluatorError: As `find_model` and `load_model` say.
    """
    files = find_model(spec.model, cache_dir)
    future = _in_background(files.digest) if digest else None
    loaded = load_model(files.folder, device=device, dtype=DTYPES[spec.launch.dtype])
    return Weights(loaded=loaded, digest=future)


def _in_background(compute: Callable[[], str]) -> "Future[str]":
    """A daemon thread, unlike those of an executor: a run that fails does not wait for it."""
    future: Future[str] = Future()

    def work() -> None:
        try:
            future.set_result(compute())
        except OSError as error:
            future.set_exception(error)

    threading.Thread(target=work, name="digest", daemon=True).start()
    return future


@dataclass(frozen=True, kw_only=True)
class Text:
    """The data set as it will be scored."""

    corpus: Corpus
    tokenizer_digest: str
    convention: Convention
    plan: Plan
    excluded_documents: dict[str, int]

    @cached_property
    def documents(self) -> dict[int, TokenDocument]:
        """Documents that have windows, by index in the data set."""
        scored = {w.document for batch in self.plan.batches for w in batch.windows}
        return {d.index: d for d in self.corpus.documents if d.index in scored}

    @property
    def size(self) -> TextSize:
        """Of the scored documents."""
        documents = self.documents.values()
        return TextSize(
            num_tokens=sum(len(document.ids) for document in documents),
            num_bytes=sum(document.num_bytes for document in documents),
            num_documents=len(documents),
            excluded_documents=self.excluded_documents,
        )


def prepare_text(spec: LaunchSpec, loaded: LoadedModel) -> Text:
    """Read, tokenise, cut into windows, plan.

    Raises:
        EvaluatorError: As `read_documents`, `tokenise` and `resolve_convention` say.
        TokenizerMismatch: An id has no row in the embedding.
        DataEmpty: There is nothing to score.
    """
    convention = resolve_convention(
        spec.scoring, max_positions=loaded.max_positions, tokenizer=loaded.tokenizer
    )
    corpus = tokenise(read_documents(spec.data), loaded.tokenizer)
    check_ids(corpus, convention.prefix, loaded.num_rows)
    windows: list[Window] = []
    num_too_short = 0
    for document in corpus.documents:
        added = list(document_windows(document.index, len(document.ids), convention.rule))
        num_too_short += not added
        windows += added
    reasons = {"empty": corpus.num_empty, "too_short": num_too_short}
    excluded = {reason: count for reason, count in reasons.items() if count}
    if not windows:
        counts = ", ".join(f"{count} {reason}" for reason, count in excluded.items())
        msg = f"no document of the data set has a token to score ({counts or 'it has none'})"
        raise DataEmpty(msg)
    tokenizer_digest = digest_tokenizer(loaded.tokenizer)
    basis = _basis(corpus, tokenizer_digest, convention)
    return Text(
        corpus=corpus,
        tokenizer_digest=tokenizer_digest,
        convention=convention,
        plan=make_plan(windows, batch_tokens=convention.used.batch_tokens, basis=basis),
        excluded_documents=excluded,
    )


def _basis(corpus: Corpus, tokenizer_digest: str, convention: Convention) -> bytes:
    facts: dict[str, Any] = {
        "data": corpus.data_digest,
        "ids": corpus.ids_digest,
        "tokenizer": tokenizer_digest,
        # The definition is prose, which may be improved.
        "scoring": convention.used.model_dump(exclude={"definition"}),
    }
    return json.dumps(facts, sort_keys=True).encode()


def text_warnings(convention: Convention, loaded: LoadedModel) -> tuple[str, ...]:
    """What a reader of the figure should know about its text."""
    added = loaded.tokenizer("")["input_ids"]
    if convention.prefix.kind != "bos" and loaded.tokenizer.bos_token_id in added:
        return ("the tokenizer begins texts with BOS, but this run scored without it",)
    return ()
