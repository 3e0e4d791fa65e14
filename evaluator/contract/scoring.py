"""How a text is scored: named conventions over one window machine. Formulas: docs/metrics.md."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from evaluator.contract.base import Contract

WindowLength = Annotated[int, Field(strict=True, ge=2, le=2**22)]
"""Tokens in a window."""


class ScoringBase(Contract):
    """What every convention has."""

    window: WindowLength | None = None
    """Tokens of a window as the convention counts them; null takes its usual one, at most the
    model's positions."""
    batch_tokens: Annotated[int, Field(strict=True, ge=2, le=2**24)] = 2048
    """Token budget of a batch; a batch has at least one window. Part of the plan."""
    prefix: Literal["auto", "bos", "eos", "none"] = "auto"
    """The token that conditions what follows it; never scored. `auto` is the convention's own."""
    prefix_place: Literal["auto", "first", "every"] = "auto"
    """In front of the first window of a document only, or of every window."""
    special_tokens: Literal["text", "parse"] = "text"
    """Whether text such as `<unk>` in a document is text, or the special token it looks like."""


class LmEvalScoring(ScoringBase):
    """lm-evaluation-harness, rolling: every token is scored once, one token of context is carried.

    `auto` prefix: BOS, else EOS, else none; in front of the first window.
    """

    convention: Literal["lm-eval"] = "lm-eval"


class HfStridedScoring(ScoringBase):
    """Hugging Face's guide: overlapping windows; each scores what is new in it.

    `auto` prefix: none.
    """

    convention: Literal["hf-strided"]
    stride: Annotated[int, Field(strict=True, ge=1, le=2**22)] | None = None
    """Tokens between two window starts, at most `window`; null takes half of the window."""

    @model_validator(mode="after")
    def _stride_fits_window(self) -> "HfStridedScoring":
        if self.window is not None and self.stride is not None and self.stride > self.window:
            msg = f"stride {self.stride} is above window {self.window}: tokens would be left out"
            raise ValueError(msg)
        return self


class GptqScoring(ScoringBase):
    """GPTQ-style papers: one stream, disjoint windows, the first token of each is not scored.

    `auto` prefix: BOS in front of the stream where the tokenizer itself adds one, else none; it
    takes the place of nothing but shifts the windows, as in the origin.
    """

    convention: Literal["gptq"]
    tail: Literal["drop", "keep"] = "drop"
    """What becomes of a last window that is not full; the papers drop it."""


class LlamaCppScoring(ScoringBase):
    """llama.cpp's perplexity: one stream, disjoint windows, the second half of each is scored.

    `auto` prefix: BOS in place of the first token of every window where the tokenizer adds one.
    """

    convention: Literal["llama.cpp"]

    @model_validator(mode="after")
    def _window_has_a_second_half(self) -> "LlamaCppScoring":
        if self.window is not None and self.window < 3:
            msg = f"window {self.window} has no token after its first half; take 3 or more"
            raise ValueError(msg)
        return self


class DocumentScoring(ScoringBase):
    """Each document alone in one window; longer ones are left out and counted (`too_long`).

    `auto` prefix: BOS, else none: then the first token is not scored.
    """

    convention: Literal["document"]


Scoring = Annotated[
    LmEvalScoring | HfStridedScoring | GptqScoring | LlamaCppScoring | DocumentScoring,
    Field(discriminator="convention"),
]


class Outputs(Contract):
    """What is kept besides the figure; larger than it, so only on request."""

    token_nll: Literal["none", "float16", "uint8"] = "none"  # noqa: S105 - tokens of a text
    """The nll of every scored token; `uint8` in 256 steps, its largest error is in the file."""
