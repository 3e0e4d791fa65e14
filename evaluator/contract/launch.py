"""What the server gives a run: which model, which text, how to score it, on how many ranks."""

from typing import Annotated, Literal

from pydantic import Field

from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.audit import Audit
from evaluator.contract.base import Contract, HubName, Name, PathText, PositiveCount, Revision
from evaluator.contract.data import DataSource
from evaluator.contract.scoring import LmEvalScoring, Outputs, Scoring
from evaluator.contract.speeds import NodeSpeed

CACHE_LIMIT_BYTES = 32 * 2**30
"""Usual bound of the token cache."""


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


Scheduling = Literal["static", "dynamic", "predictive"]
"""`static`: equal parts, cut beforehand. `dynamic`: whoever is free takes more. `predictive`: the
same, and as much as its speed allows."""


class Layout(Contract):
    """Where and with how many processes to run."""

    nodes: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    ranks_per_node: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads_per_rank: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    """Intra-op CPU threads; fixed, so that the figure does not depend on the number of ranks."""

    scheduling: Scheduling = "dynamic"
    """How ranks come to their batches; changes no number. docs/scheduling.md"""

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
    scoring: Scoring = LmEvalScoring()
    outputs: Outputs = Outputs()
    launch: Layout = Layout()
    audit: Audit = Audit()
    run_dir: PathText | None = None
    """Folder of this attempt's files; null takes `<spec file>.run`."""
    cache_dir: PathText | None = None
    """Folder shared by jobs for converted weights and token ids; null takes `~/.cache/assay`."""
    cache_limit_bytes: PositiveCount = CACHE_LIMIT_BYTES
    """Most bytes of token ids in the cache; what was not used for longest goes first."""
    mirror_dir: PathText | None = None
    """Folder with copies of hub data sets; docs/data.md says in what shape."""
    finished_path: PathText | None = None
    """JSON lines of `FinishedEntry` that earlier attempts scored; they are not scored again."""
    finished_plan: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """Digest of the plan that the finished entries belong to."""
    finished_model: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """Digest of the model that scored the finished entries."""
    node_speeds: tuple[NodeSpeed, ...] = ()
    """What nodes were seen to do before; those that this run does not have are passed over."""
    report_url: PathText | None = None
    """Where to post reports; null keeps them in the run directory only."""
    token_path: PathText | None = None
    """A 0600 file with the bearer token of this attempt."""
