"""Which text is scored: where it comes from, and what becomes of it before it is tokenised."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from evaluator.contract.base import (
    Contract,
    HubName,
    Name,
    PathText,
    PositiveCount,
    Revision,
    Text,
    encodable,
)

KnownName = Literal["wikitext-2", "wikitext-103", "ptb", "c4", "lambada"]
"""Data sets with usual settings; docs/data.md says which."""


class Sample(Contract):
    """Some documents drawn at random, without repetition, kept in their order."""

    num_documents: PositiveCount
    seed: Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)] = 0


class Source(Contract):
    """What every source has. Applied in this order: first, sample, detokenise, join."""

    errors: Literal["strict", "replace"] = "strict"
    """`replace` turns each invalid UTF-8 sequence into U+FFFD and counts it in the result."""
    first: PositiveCount | None = None
    """Only so many documents from the start."""
    sample: Sample | None = None
    detokenise: Literal["wikitext"] | None = None
    """Undo the spaces that a data set was published with."""
    join: Annotated[str, Field(max_length=100), BeforeValidator(encodable)] | None = None
    """Text between documents that are joined to one stream; null keeps documents apart, but for
    conventions that know only a stream (`gptq`, `llama.cpp`): these say what they chose."""


class TextData(Source):
    """A UTF-8 text file; the whole file is one document."""

    kind: Literal["text"]
    path: PathText


class FolderData(Source):
    """UTF-8 text files of a folder and the folders in it, in the order of their paths."""

    kind: Literal["folder"]
    path: PathText
    pattern: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^/\x00]+$")] = "*.txt"
    """Which file names count, as in a shell; hidden ones only where it begins with a dot."""


class JsonlData(Source):
    """A file with one JSON object a line; each is a document."""

    kind: Literal["jsonl"]
    path: PathText
    field: Name = "text"


class CsvData(Source):
    """A CSV file with a header line; each row is a document."""

    kind: Literal["csv"]
    path: PathText
    field: Name = "text"
    delimiter: Annotated[str, Field(pattern=r'^[^"\r\n\x00\ufeff]$')] = ","


class ParquetData(Source):
    """A Parquet file; each row is a document."""

    kind: Literal["parquet"]
    path: PathText
    field: Name = "text"


class HubData(Source):
    """A data set on the hub; each row is a document."""

    kind: Literal["hub"]
    name: HubName
    config: Name | None = None
    split: Name = "test"
    revision: Revision = "main"
    field: Name = "text"


class KnownData(Source):
    """A data set by its common name, with its usual settings where this says nothing else."""

    kind: Literal["known"]
    name: KnownName


class InlineData(Source):
    """Documents inside the request itself; the server limits their size."""

    kind: Literal["inline"]
    documents: Annotated[tuple[Text, ...], Field(min_length=1, max_length=100_000)]


def _known_by_name(value: object) -> object:
    return {"kind": "known", "name": value} if isinstance(value, str) else value


_AnySource = Annotated[
    TextData | FolderData | JsonlData | CsvData | ParquetData | HubData | KnownData | InlineData,
    Field(discriminator="kind"),
]

DataSource = Annotated[
    _AnySource, BeforeValidator(_known_by_name, json_schema_input_type=KnownName | _AnySource)
]
"""`"wikitext-2"` alone is short for `{"kind": "known", "name": "wikitext-2"}`."""
