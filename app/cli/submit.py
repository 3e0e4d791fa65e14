"""`assay submit`: ask for a job, from a file, from options, or from both."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import urljoin

import typer

from app.cli.client import Client, is_loopback
from app.cli.numbers import parse_duration
from app.cli.options import (
    DEFAULT_SERVER,
    JsonOption,
    ServerOption,
    make_console,
    parse_labels,
    refuse,
    write_json,
)
from app.cli.watch import watch_to_end
from evaluator.contract.data import KnownName
from evaluator.contract.strict_json import RepeatedMember, unique_members

Json = dict[str, Any]

_DATA_KINDS = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_WITHOUT_FIELD = ("text", "folder")
_KNOWN_NAMES = get_args(KnownName)

_FILE, _MODEL, _DATA = "What to do", "Model", "Text"
_SCORING, _LAUNCH, _REST = "Scoring", "Launch", "Limits and words"

FileOption = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="A job request in JSON, - for stdin; other options change what it says.",
        rich_help_panel=_FILE,
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Watch the job to its end.", rich_help_panel=_FILE)
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="A folder with safetensors weights, or a .gguf file.",
        rich_help_panel=_MODEL,
    ),
]
HubOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A model on the hub.", rich_help_panel=_MODEL),
]
RevisionOption = Annotated[
    str | None,
    typer.Option(
        metavar="REV",
        help="Commit, tag or branch on the hub; a commit makes it reproducible.",
        rich_help_panel=_MODEL,
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="A .txt, .jsonl, .csv or .parquet file, a folder/, or a known set such as wikitext-2.",
        rich_help_panel=_DATA,
    ),
]
FieldOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The field that holds the text, in .jsonl, .csv and .parquet (text).",
        rich_help_panel=_DATA,
    ),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A document itself; may be repeated.", rich_help_panel=_DATA),
]
ConventionOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="lm-eval, hf-strided, gptq, llama.cpp or document (lm-eval; hf-strided where "
        "--stride is given).",
        rich_help_panel=_SCORING,
    ),
]
WindowOption = Annotated[
    int | None, typer.Option(min=2, help="Tokens in a window.", rich_help_panel=_SCORING)
]
StrideOption = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens between two windows, hf-strided.", rich_help_panel=_SCORING),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="What a text's first token is given: auto, bos, eos or none.",
        rich_help_panel=_SCORING,
    ),
]
PrefixPlaceOption = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Where it stands: auto, first (of a text) or every (window).",
        rich_help_panel=_SCORING,
    ),
]
SpecialTokensOption = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="What <unk> in a text is: text, or parse for the token (text).",
        rich_help_panel=_SCORING,
    ),
]
BatchTokensOption = Annotated[
    int | None, typer.Option(min=2, help="Tokens in a forward.", rich_help_panel=_SCORING)
]
RanksOption = Annotated[
    int | None, typer.Option(min=1, help="Processes on each node.", rich_help_panel=_LAUNCH)
]
NodesOption = Annotated[int | None, typer.Option(min=1, help="Machines.", rich_help_panel=_LAUNCH)]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="auto, cpu or cuda.", rich_help_panel=_LAUNCH),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="float32, bfloat16 or float16.", rich_help_panel=_LAUNCH),
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="CPU threads of a rank.", rich_help_panel=_LAUNCH)
]
AuditShareOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="Of each rank's windows, scored again on another rank; 0 for none (0.01).",
        rich_help_panel=_LAUNCH,
    ),
]
SchedulingOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How ranks come to their batches: static, dynamic or predictive (dynamic).",
        rich_help_panel=_LAUNCH,
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="TIME",
        help="Most time, all attempts together: 90s, 15m, 2h, 1d.",
        rich_help_panel=_REST,
    ),
]
AttemptsOption = Annotated[
    int | None, typer.Option(min=1, help="Most launches.", rich_help_panel=_REST)
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="To find the job by; may be repeated.", rich_help_panel=_REST
    ),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(min=-100, max=100, help="Higher goes first (0).", rich_help_panel=_REST),
]


def submit(
    file: FileOption = None,
    wait: WaitOption = False,
    model: ModelOption = None,
    hub: HubOption = None,
    revision: RevisionOption = None,
    data: DataOption = None,
    field: FieldOption = None,
    text: TextOption = None,
    convention: ConventionOption = None,
    window: WindowOption = None,
    stride: StrideOption = None,
    prefix: PrefixOption = None,
    prefix_place: PrefixPlaceOption = None,
    special_tokens: SpecialTokensOption = None,
    batch_tokens: BatchTokensOption = None,
    ranks: RanksOption = None,
    nodes: NodesOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    audit_share: AuditShareOption = None,
    scheduling: SchedulingOption = None,
    time_limit: TimeOption = None,
    attempts: AttemptsOption = None,
    label: LabelOption = None,
    priority: PriorityOption = None,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Ask for a job; prints its id and its address."""
    request = read_request(file) if file is not None else {}
    merge(request, "model", model_source(model, hub, revision, server), whole=True)
    merge(request, "data", data_source(data, field, text, server), whole=True)
    scoring = {"window": window, "stride": stride, "prefix": prefix, "batch_tokens": batch_tokens}
    texts = {"prefix_place": prefix_place, "special_tokens": special_tokens}
    merge(request, "scoring", scoring | texts | {"convention": convention})
    layout = {"ranks_per_node": ranks, "nodes": nodes, "device": device, "dtype": dtype}
    merge(request, "launch", layout | {"threads_per_rank": threads, "scheduling": scheduling})
    merge(request, "audit", {"share": audit_share})
    merge(request, "limits", {"time_seconds": seconds(time_limit), "attempts": attempts})
    merge(request, "labels", dict(parse_labels(label or ())))
    if priority is not None:
        request["priority"] = priority
    complete(request)
    with Client(server) as client:
        raise typer.Exit(send(client, request, wait=wait, as_json=as_json))


def send(client: Client, request: Json, *, wait: bool, as_json: bool) -> int:
    """Submit, print, watch where asked; return the exit code."""
    document = client.submit(request)
    job_id = document.data["id"]
    if as_json:
        write_json(document.text)
    else:
        make_console().print(job_id, job_address(client, document.data), soft_wrap=True)
    return watch_to_end(client, job_id, as_json=as_json) if wait else 0


def job_address(client: Client, job: Json) -> str:
    """Return the absolute address of a job."""
    return urljoin(f"{client.server}/", str(job["links"]["self"]))


def read_request(name: str) -> Json:
    """Return the JSON object in the file `name`, or in stdin where it is `-`."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        request = json.loads(text, object_pairs_hook=unique_members)
    except OSError as error:
        refuse(f"{name} can't be read: {error.strerror}", option="--file")
    except RepeatedMember as error:
        refuse(f"{name}: {error}", option="--file")
    except ValueError as error:
        refuse(f"{name} holds no JSON: {error}", option="--file")
    if not isinstance(request, dict):
        refuse(
            f"{name} holds no JSON object: a job request has `model` and `data`", option="--file"
        )
    return request


def merge(request: Json, part: str, given: Json | None, *, whole: bool = False) -> None:
    """Put what was `given` (not null) over `request[part]`."""
    wanted = {name: value for name, value in (given or {}).items() if value is not None}
    if not wanted:
        return
    before = request.get(part)
    request[part] = wanted if whole or not isinstance(before, dict) else before | wanted


def complete(request: Json) -> None:
    """Check that there is a model and a text; name the convention."""
    if "model" not in request:
        refuse("name a model with --model, --hub or --file")
    if "data" not in request:
        refuse("name a text with --data, --text or --file")
    scoring = request.get("scoring")
    if isinstance(scoring, dict) and "convention" not in scoring:
        scoring["convention"] = "hf-strided" if "stride" in scoring else "lm-eval"


def model_source(
    path: str | None, hub: str | None, revision: str | None, server: str
) -> Json | None:
    """Return the model of the request; null where the options name none."""
    if path is not None and hub is not None:
        refuse("--model and --hub exclude each other")
    if revision is not None and hub is None:
        refuse("--revision needs --hub")
    if hub is not None:
        return {"kind": "hub", "name": hub, "revision": revision}
    if path is None:
        return None
    kind = "gguf" if path.lower().endswith(".gguf") else "folder"
    return {"kind": kind, "path": as_server_sees(path, server)}


def data_source(
    path: str | None, field: str | None, texts: list[str] | None, server: str
) -> Json | None:
    """Return the text of the request; null where the options name none."""
    if path is not None and texts:
        refuse("--data and --text exclude each other")
    if path is None:
        if field is not None:
            refuse("--field needs --data")
        return {"kind": "inline", "documents": texts} if texts else None
    if path in _KNOWN_NAMES:
        return {"kind": "known", "name": path}
    kind = _data_kind(path)
    if kind in _WITHOUT_FIELD and field is not None:
        refuse("--field is for .jsonl, .csv and .parquet; a text file is one document")
    return {"kind": kind, "path": as_server_sees(path, server), "field": field}


def _data_kind(path: str) -> str:
    """Return the kind of source that a path names, or end with exit code 2."""
    kind = _DATA_KINDS.get(Path(path).suffix.lower())
    if kind is None and (path.endswith("/") or Path(path).expanduser().is_dir()):
        return "folder"
    if kind is None:
        refuse(
            f"{path!r} does not tell its kind: name it *.txt, *.jsonl, *.csv or *.parquet, end a "
            f"folder with /, take a known set ({', '.join(_KNOWN_NAMES)}), or give the kind in a "
            "job file (--file)",
            option="--data",
        )
    return kind


def as_server_sees(path: str, server: str) -> str:
    """Return an absolute path for what is here, where the server is here too.

    The server looks relative paths up in its own roots; the user means the current folder.
    """
    here = Path(path).expanduser()
    return str(here.absolute()) if is_loopback(server) and here.exists() else path


def seconds(text: str | None) -> int | None:
    """Return the seconds of a duration, or end with exit code 2."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        refuse(str(error), option="--time")
