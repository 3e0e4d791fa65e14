"""What the options of `assay submit` name: the model and the text, as a request says it."""

from pathlib import Path
from typing import Any, get_args

from app.cli.client import is_loopback
from app.cli.options import refuse
from evaluator.contract.data import KnownName

Json = dict[str, Any]

_DATA_KINDS = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_WITHOUT_FIELD = ("text", "folder")
_KNOWN_NAMES = get_args(KnownName)


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
