"""`assay submit`: ask for a job, from a file, from options, or from both."""

import re
from typing import Annotated, Any
from urllib.parse import urljoin

import typer

from app.cli.client import Client
from app.cli.commit import CommitOption, ContextOption, commit_target
from app.cli.gate import GateAsked, SummaryOption, print_gate
from app.cli.numbers import parse_duration
from app.cli.options import (
    DEFAULT_SERVER,
    EXIT_JOB,
    EXIT_OK,
    EXIT_SERVER,
    JsonOption,
    ServerOption,
    make_console,
    parse_labels,
    read_object,
    refuse,
    write_json,
)
from app.cli.sources import data_source, model_source
from app.cli.watch import watch_to_end
from evaluator.contract.parallelism import Parallelism

Json = dict[str, Any]

_WAYS = re.compile(r"-1|[1-9]\d*")

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
GateOption = Annotated[
    str | None,
    typer.Option(
        "--gate",
        metavar="FILE",
        help="With --wait: judge the job when it has succeeded, by the baseline and the rules in "
        "this JSON file.",
        rich_help_panel=_FILE,
    ),
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
ParallelOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="For models larger than a device: auto, or for example tp=2,dp_shard=2; what is left "
        "of the ranks scores batches of its own.",
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
    gate: GateOption = None,
    summary: SummaryOption = None,
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
    parallelism: ParallelOption = None,
    audit_share: AuditShareOption = None,
    scheduling: SchedulingOption = None,
    time_limit: TimeOption = None,
    attempts: AttemptsOption = None,
    label: LabelOption = None,
    priority: PriorityOption = None,
    commit: CommitOption = None,
    context: ContextOption = None,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Ask for a job; prints its id and its address."""
    request = read_object(file, option="--file") if file is not None else {}
    merge(request, "model", model_source(model, hub, revision, server), whole=True)
    merge(request, "data", data_source(data, field, text, server), whole=True)
    scoring = {"window": window, "stride": stride, "prefix": prefix, "batch_tokens": batch_tokens}
    texts = {"prefix_place": prefix_place, "special_tokens": special_tokens}
    merge(request, "scoring", scoring | texts | {"convention": convention})
    layout: Json = {"ranks_per_node": ranks, "nodes": nodes, "device": device, "dtype": dtype}
    layout |= {"threads_per_rank": threads, "scheduling": scheduling}
    merge(request, "launch", layout | {"parallelism": parallelism_of(parallelism)})
    merge(request, "audit", {"share": audit_share})
    finish(request, limits_of(time_limit, attempts), label or [], priority)
    then, target = gate_asked(gate, summary, wait=wait), commit_target(commit, context)
    with Client(server) as client:
        code = send(client, request, wait=wait, then=then, target=target, as_json=as_json)
    raise typer.Exit(code)


def gate_asked(name: str | None, summary: list[str] | None, *, wait: bool) -> GateAsked | None:
    """Return the gate in the file `name`; null where none is asked for."""
    if name is None:
        if summary:
            refuse("--summary needs --gate")
        return None
    if not wait:
        refuse("--gate needs --wait: a job is judged when it has succeeded")
    return GateAsked.make(read_object(name, option="--gate"), summary, option="--gate")


def send(
    client: Client,
    request: Json,
    *,
    wait: bool,
    as_json: bool,
    then: GateAsked | None = None,
    target: Json | None = None,
) -> int:
    """Submit, print, report, watch and judge where asked; return the exit code."""
    document = client.submit(request)
    job_id = document.data["id"]
    if as_json:
        write_json(document.text)
    else:
        make_console().print(job_id, job_address(client, document.data), soft_wrap=True)
    if target is not None:
        client.set_commit(job_id, target)
    code = watch_to_end(client, job_id, as_json=as_json) if wait else EXIT_OK
    if then is None:
        return code
    if code == EXIT_OK:
        return print_gate(client, job_id, then, as_json=as_json)
    return EXIT_SERVER if code == EXIT_JOB else code


def job_address(client: Client, job: Json) -> str:
    """Return the absolute address of a job."""
    return urljoin(f"{client.server}/", str(job["links"]["self"]))


def merge(request: Json, part: str, given: Json | None, *, whole: bool = False) -> None:
    """Put what was `given` (not null) over `request[part]`."""
    wanted = {name: value for name, value in (given or {}).items() if value is not None}
    if not wanted:
        return
    before = request.get(part)
    request[part] = wanted if whole or not isinstance(before, dict) else before | wanted


def limits_of(time_limit: str | None, attempts: int | None) -> Json:
    """Return the limits; a time that is none ends with exit code 2."""
    return {"time_seconds": seconds(time_limit), "attempts": attempts}


def finish(request: Json, limits: Json, labels: list[str], priority: int | None) -> None:
    """Add what is neither model nor text nor their scoring, and complete the request."""
    merge(request, "limits", limits)
    merge(request, "labels", dict(parse_labels(labels)))
    if priority is not None:
        request["priority"] = priority
    complete(request)


def complete(request: Json) -> None:
    """Check that there is a model and a text; name the convention."""
    if "model" not in request:
        refuse("name a model with --model, --hub or --file")
    if "data" not in request:
        refuse("name a text with --data, --text or --file")
    scoring = request.get("scoring")
    if isinstance(scoring, dict) and "convention" not in scoring:
        scoring["convention"] = "hf-strided" if "stride" in scoring else "lm-eval"


def parallelism_of(text: str | None) -> str | dict[str, int] | None:
    """Return `auto`, or ways by name, or end with exit code 2."""
    if text is None or text == "auto":
        return text
    ways = {}
    for word in text.split(","):
        name, equals, number = word.strip().partition("=")
        if name not in Parallelism.model_fields or not equals or not _WAYS.fullmatch(number):
            names = ", ".join(Parallelism.model_fields)
            refuse(f"{word!r}: write auto, or NAME=WAYS with {names}", option="--parallelism")
        ways[name] = int(number)
    return ways


def seconds(text: str | None) -> int | None:
    """Return the seconds of a duration, or end with exit code 2."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        refuse(str(error), option="--time")
