"""What the server gives a run: which model, which text, how to score it, on how many ranks."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.base import Contract, Name, PathText, PositiveCount, Text

HubName = Annotated[str, Field(max_length=200, pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)?$")]
"""`organisation/name` or `name` on a model hub."""
Revision = Annotated[str, Field(max_length=200, pattern=r"^[\w][\w./-]*$")]
"""A commit hash, tag or branch on a model hub."""


class FolderModel(Contract):
    """A folder with `config.json`, safetensors weights and a tokenizer."""

    kind: Literal["folder"]
    path: PathText


class GgufModel(Contract):
    """A GGUF file; its weights are dequantised once and cached as safetensors."""

    kind: Literal["gguf"]
    path: PathText


class HubModel(Contract):
    """A model on the hub; give a commit hash as `revision` for a reproducible figure."""

    kind: Literal["hub"]
    name: HubName
    revision: Revision = "main"


ModelSource = Annotated[FolderModel | GgufModel | HubModel, Field(discriminator="kind")]


class TextData(Contract):
    """A UTF-8 text file; the whole file is one document."""

    kind: Literal["text"]
    path: PathText


class JsonlData(Contract):
    """A file with one JSON object a line; each is a document."""

    kind: Literal["jsonl"]
    path: PathText
    field: Name = "text"


class ParquetData(Contract):
    """A Parquet file; each row is a document."""

    kind: Literal["parquet"]
    path: PathText
    field: Name = "text"


class HubData(Contract):
    """A data set on the hub; each row is a document."""

    kind: Literal["hub"]
    name: HubName
    config: Name | None = None
    split: Name = "test"
    revision: Revision = "main"
    field: Name = "text"


class InlineData(Contract):
    """Documents inside the request itself; the server limits their size."""

    kind: Literal["inline"]
    documents: Annotated[tuple[Text, ...], Field(min_length=1, max_length=100_000)]


DataSource = Annotated[
    TextData | JsonlData | ParquetData | HubData | InlineData, Field(discriminator="kind")
]

WindowLength = Annotated[int, Field(strict=True, ge=2, le=2**22)]
"""Tokens in a window."""


class ScoringBase(Contract):
    """What every convention has."""

    window: WindowLength | None = None
    """Most tokens fed in one forward; null takes the smaller of 2048 and the model's positions."""
    batch_tokens: Annotated[int, Field(strict=True, ge=2, le=2**24)] = 2048
    """Token budget of a batch; a batch has at least one window. Part of the plan."""


class RollingScoring(ScoringBase):
    """Every token is scored once; windows do not overlap but for one token of context."""

    convention: Literal["rolling"] = "rolling"
    prefix: Literal["auto", "bos", "eos", "none"] = "auto"
    """The token that conditions the first one of a document. `auto`: BOS, else EOS, else none."""


class StridedScoring(ScoringBase):
    """Overlapping windows that start every `stride` tokens; each scores what is new in it."""

    convention: Literal["strided"]
    stride: Annotated[int, Field(strict=True, ge=1, le=2**22)] | None = None
    """Tokens between two window starts, at most `window`; null takes half of the window."""

    @model_validator(mode="after")
    def _stride_fits_window(self) -> "StridedScoring":
        if self.window is not None and self.stride is not None and self.stride > self.window:
            msg = f"stride {self.stride} is above window {self.window}: tokens would be left out"
            raise ValueError(msg)
        return self


Scoring = Annotated[RollingScoring | StridedScoring, Field(discriminator="convention")]


class Layout(Contract):
    """Where and with how many processes to run."""

    nodes: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    ranks_per_node: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads_per_rank: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    """Intra-op CPU threads; fixed, so that the figure does not depend on the number of ranks."""

    @property
    def num_ranks(self) -> int:
        """Processes over all nodes."""
        return self.nodes * self.ranks_per_node


class LaunchSpec(Contract):
    """One attempt. `model` and `data` suffice to run without a server."""

    contract_version: Literal[1] = CONTRACT_VERSION
    job_id: Name = "local"
    attempt: PositiveCount = 1
    model: ModelSource
    data: DataSource
    scoring: Scoring = RollingScoring()
    launch: Layout = Layout()
    run_dir: PathText | None = None
    """Folder of this attempt's files; null takes `<spec file>.run`."""
    cache_dir: PathText | None = None
    """Folder shared by jobs for converted weights; null takes `~/.cache/assay`."""
    finished_path: PathText | None = None
    """JSON lines of `LedgerEntry` that earlier attempts scored; they are not scored again."""
    finished_plan: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """Digest of the plan that the finished entries belong to."""
    finished_model: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """Digest of the model that scored the finished entries."""
    report_url: PathText | None = None
    """Where to post reports; null keeps them in the run directory only."""
    token_path: PathText | None = None
    """A 0600 file with the bearer token of this attempt."""
