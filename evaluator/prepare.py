"""From the spec to everything that scoring needs: model, tokens, plan."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from evaluator.contract.launch import LaunchSpec
from evaluator.data import read_documents, usual_join
from evaluator.data.long_text import long_document
from evaluator.errors import DataEmpty
from evaluator.figure.perplexity import TextSize
from evaluator.model.device import DTYPES
from evaluator.model.files import ModelFiles
from evaluator.model.forward import NUMERICS
from evaluator.model.loading import LoadedModel, load_model
from evaluator.parallel.group import ScoringGroup
from evaluator.planning.conventions import Convention, resolve_convention
from evaluator.planning.plan import Plan, make_plan
from evaluator.planning.windows import (
    Tail,
    Window,
    document_windows,
    unscored_tokens,
    why_without_windows,
)
from evaluator.text.corpus import AnyDocument, load_corpus
from evaluator.text.tokens import Corpus, TokenDocument, adds_bos, check_ids, digest_tokenizer


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
    spec: LaunchSpec, files: ModelFiles, device: torch.device, group: ScoringGroup, *, digest: bool
) -> Weights:
    """Load the model, or this rank's part; the digest is computed beside what follows.

    Raises:
        EvaluatorError: As `load_model` says.
    """
    future = _in_background(files.digest) if digest else None
    dtype = DTYPES[spec.launch.dtype]
    loaded = load_model(files.folder, device=device, dtype=dtype, group=group)
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
    excluded_tokens: dict[str, int]
    """Of documents that have windows."""

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
            num_words=sum(document.num_words for document in documents),
            num_replaced=sum(document.num_replaced for document in documents),
            num_documents=len(documents),
            excluded_documents=self.excluded_documents,
            excluded_tokens=self.excluded_tokens,
        )


def prepare_text(
    spec: LaunchSpec,
    loaded: LoadedModel,
    cache_dir: Path,
    tick: Callable[[], None] = lambda: None,
) -> Text:
    """Read, tokenise, cut into windows, plan; `tick` is called often while that takes long.

    Raises:
        EvaluatorError: As `read_documents`, `load_corpus` and `resolve_convention` say.
        TokenizerMismatch: An id has no row in the embedding.
        DataEmpty: There is nothing to score.
    """
    convention = resolve_convention(
        spec.scoring,
        max_positions=loaded.max_positions,
        tokenizer=loaded.tokenizer,
        join=usual_join(spec.data),
    )
    tokenizer_digest = digest_tokenizer(loaded.tokenizer)
    corpus = load_corpus(
        lambda: _documents(spec, convention),
        loaded.tokenizer,
        convention.used.special_tokens,
        tokenizer_digest=tokenizer_digest,
        cache_dir=cache_dir,
        cache_limit_bytes=spec.cache_limit_bytes,
        tick=tick,
    )
    check_ids(corpus, convention.prefix, loaded.num_rows)
    cut = _cut(corpus, convention)
    basis = _basis(corpus, tokenizer_digest, convention)
    return Text(
        corpus=corpus,
        tokenizer_digest=tokenizer_digest,
        convention=convention,
        plan=make_plan(cut.windows, batch_tokens=convention.used.batch_tokens, basis=basis),
        excluded_documents=dict(cut.excluded_documents),
        excluded_tokens=dict(cut.excluded_tokens),
    )


def _documents(spec: LaunchSpec, convention: Convention) -> Iterator[AnyDocument]:
    """What the convention takes for documents: those of the data set, or one stream of them."""
    drops_newline = convention.stream is not None and convention.stream.drops_newline
    long = long_document(spec.data)
    if long is not None:
        return iter([long.without_final_newline() if drops_newline else long])
    mirror_dir = Path(spec.mirror_dir) if spec.mirror_dir else None
    source = spec.data.model_copy(update={"join": convention.used.join})
    documents = read_documents(source, mirror_dir=mirror_dir)
    if not drops_newline:
        return iter(documents)
    return (document._replace(text=document.text.removesuffix("\n")) for document in documents)


class _Cut(NamedTuple):
    """All windows of a corpus, and what they leave out."""

    windows: list[Window]
    excluded_documents: Counter[str]
    excluded_tokens: Counter[str]


def _cut(corpus: Corpus, convention: Convention) -> _Cut:
    """Cut all documents into windows.

    Raises:
        DataEmpty: There is nothing to score.
    """
    rule = convention.rule
    cut = _Cut([], Counter({"empty": corpus.num_empty} if corpus.num_empty else {}), Counter())
    for document in corpus.documents:
        num_tokens = len(document.ids)
        windows = list(document_windows(document.index, num_tokens, rule))
        if windows:
            cut.windows.extend(windows)
            cut.excluded_tokens.update(unscored_tokens(num_tokens, windows, rule))
        else:
            cut.excluded_documents[why_without_windows(num_tokens, rule)] += 1
    if not cut.windows:
        reasons = ", ".join(f"{n} {reason}" for reason, n in cut.excluded_documents.items())
        longest = max((len(document.ids) for document in corpus.documents), default=0)
        msg = (
            f"no document of the data set has a token to score ({reasons or 'it has none'})"
            f"{_advice(cut.excluded_documents, longest, convention)}"
        )
        raise DataEmpty(msg)
    return cut


def _advice(excluded: Counter[str], longest: int, convention: Convention) -> str:
    """What to do about documents that are too long or too short for their windows."""
    used = convention.used
    if "too_long" in excluded:
        return (
            f": {used.convention} takes whole documents in windows of {used.window}, and the "
            f"longest has {longest} tokens; ask for a longer scoring.window, or take lm-eval"
        )
    if "too_short" not in excluded:
        return ""
    if convention.rule.tail is Tail.DROP:
        return (
            f": the longest has {longest} tokens, and {used.convention} wants full windows of "
            f"{used.window}; ask for a shorter scoring.window, or take lm-eval"
        )
    return (
        f": the longest has {longest} token, and with no prefix a token is scored only after "
        f"another; ask for scoring.prefix bos or eos"
    )


def _basis(corpus: Corpus, tokenizer_digest: str, convention: Convention) -> bytes:
    facts: dict[str, Any] = {
        "data": corpus.data_digest,
        "ids": corpus.ids_digest,
        "tokenizer": tokenizer_digest,
        # The definition is prose, which may be improved.
        "scoring": convention.used.model_dump(exclude={"definition"}),
        # Not what is scored but how: work that was computed otherwise must not be taken over.
        "numerics": NUMERICS,
    }
    return json.dumps(facts, sort_keys=True).encode()


def text_warnings(text: Text, loaded: LoadedModel) -> tuple[str, ...]:
    """What a reader of the figure should know about its text."""
    used = text.convention.used
    warnings = []
    if used.prefix != "bos" and adds_bos(loaded.tokenizer):
        warnings.append("the tokenizer begins texts with BOS, but this run scored without it")
    num_doubled = sum(d.ids[0] == used.prefix_token_id for d in text.documents.values())
    if used.prefix == "bos" and num_doubled:
        warnings.append(
            f"{num_doubled} documents begin with BOS themselves: it was scored, after the prefix"
        )
    num_tokens = text.size.num_tokens + (used.prefix != "none")
    if used.convention == "llama.cpp" and num_tokens < 2 * used.window:
        warnings.append(
            f"the text has {num_tokens} tokens, BOS counted; llama.cpp itself refuses texts of "
            f"less than two windows of {used.window}"
        )
    return tuple(warnings)
