"""What the known names stand for, and where a mirror keeps a hub data set. Both sides need it.

docs/data.md repeats the table.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from evaluator.contract.base import PathText
from evaluator.contract.data import HubData, KnownData, KnownName

_PART = re.compile(r"-(?P<number>\d{5})-of-(?P<total>\d{5})(-[0-9a-f]+)?$")
"""How the hub names the parts of a split, some with a hash of their content."""


class KnownSet(HubData):
    """A hub data set with its usual settings."""

    files: PathText | None = None
    """Which files of the repository hold the split; null leaves it to the `datasets` library."""


KNOWN_SETS: dict[KnownName, KnownSet] = {
    "wikitext-2": KnownSet(
        kind="hub", name="Salesforce/wikitext", config="wikitext-2-raw-v1", join="\n\n"
    ),
    # Without `files` the library fetches all splits: here 500 MB, and 300 GB of c4 below.
    "wikitext-103": KnownSet(
        kind="hub",
        name="Salesforce/wikitext",
        config="wikitext-103-raw-v1",
        files="wikitext-103-raw-v1/test-*.parquet",
        join="\n\n",
    ),
    # The repository itself holds a script, which `datasets` no longer runs; the hub converts it.
    "ptb": KnownSet(
        kind="hub",
        name="ptb-text-only/ptb_text_only",
        config="penn_treebank",
        revision="refs/convert/parquet",
        files="penn_treebank/test/*.parquet",
        field="sentence",
        join=" ",
    ),
    "c4": KnownSet(
        kind="hub",
        name="allenai/c4",
        config="en",
        split="validation",
        files="en/c4-validation.00000-of-00008.json.gz",
        first=1100,
        join=" ",
    ),
    "lambada": KnownSet(kind="hub", name="EleutherAI/lambada_openai", config="default"),
}


def expand(source: KnownData) -> KnownSet:
    """The hub data set behind a known name; what `source` says goes before the usual."""
    said = {
        name: value
        for name, value in source.model_dump(exclude={"kind", "name"}).items()
        if value is not None
    }
    return KnownSet.model_validate({**KNOWN_SETS[source.name].model_dump(), **said})


def mirror_folder(mirror_dir: Path, source: HubData) -> Path | None:
    """Where a mirror would keep the files of `source`; None where its words make no folder."""
    parts = (*source.name.split("/"), *([source.config] if source.config else []))
    if any(part.startswith(".") or "/" in part or "\\" in part for part in parts):
        return None
    return mirror_dir.joinpath(*parts)


def mirror_files(mirror_dir: Path | None, source: HubData) -> list[Path]:
    """Files of a split that a mirror has, in the order of their names; empty where it has none.

    A mirror knows no revisions, so of the sets that are no known ones it serves `main` only.
    """
    if not _mirror_serves(source):
        return []
    return _files_of(mirror_dir, source)


def mirror_refuses(mirror_dir: Path | None, source: HubData) -> str | None:
    """Why a mirror that has the files does not serve them, and what to do; None where it does."""
    if _mirror_serves(source) or not _files_of(mirror_dir, source):
        return None
    return (
        f"the mirror has {source.name}, but it knows no revisions and serves `main` only, not "
        f"{source.revision}: leave data.revision out to take the mirror's copy"
    )


def _mirror_serves(source: HubData) -> bool:
    return source.revision == "main" or isinstance(source, KnownSet)


def _files_of(mirror_dir: Path | None, source: HubData) -> list[Path]:
    if mirror_dir is None:
        return []
    folder = mirror_folder(mirror_dir, source)
    if folder is None or not folder.is_dir():
        return []
    # `test-00000-of-00001.parquet` is of the split `test`, `test_long.parquet` is not.
    wanted = re.compile(rf"{re.escape(source.split)}(-.*)?\.parquet")
    return sorted(path for path in folder.iterdir() if wanted.fullmatch(path.name))


def mirror_fault(files: Sequence[Path]) -> str | None:
    """Why these files of a split are not one whole copy of it, and what to do; None where they are.

    Whole is a single file without a number, or each part from 00000 on of one number of parts.
    """
    found = [_PART.search(path.stem) for path in files]
    parts = [match for match in found if match is not None]
    if len(files) == 1 and not parts:
        return None
    place = files[0].parent
    if len({match["total"] for match in parts}) != 1 or len(parts) != len(files):
        names = ", ".join(path.name for path in files[:4])
        return f"the mirror's folder {place} has more than one copy of a split: {names}; keep one"
    total = int(parts[0]["total"])
    there = [int(match["number"]) for match in parts]
    missing = sorted(set(range(total)) - set(there))
    if missing:
        return (
            f"the mirror's folder {place} has {len(files)} of {total} parts: part "
            f"{missing[0]:05d} is missing; copy it there as well"
        )
    if there != list(range(total)):
        names = ", ".join(path.name for path in files[:4])
        return f"the mirror's folder {place} has a part twice: {names}; keep one of each"
    return None
