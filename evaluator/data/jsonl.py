"""JSON lines: each line is an object, and one of its fields is the document."""

import json
from collections.abc import Iterator

from evaluator.contract.data import JsonlData
from evaluator.contract.strict_json import RepeatedMember, unique_members
from evaluator.data.document import Document, missing_field, text_field
from evaluator.data.encoding import decoded_lines, existing_file
from evaluator.errors import DataInvalid

_DECODER = json.JSONDecoder(object_pairs_hook=unique_members)


def read(source: JsonlData) -> Iterator[Document]:
    """One document a line; lines of white space alone are no records."""
    path = existing_file(source.path)
    for line in decoded_lines(path, errors=source.errors):
        if line.text.strip():
            place = f"line {line.number} of {path}"
            yield Document(_text(line.text, source.field, place), place, line.num_replaced)


def _text(line: str, field: str, place: str) -> str:
    try:
        record = _DECODER.decode(line)
    except RepeatedMember as error:
        msg = f"{place}: {error}"
        raise DataInvalid(msg) from error
    except RecursionError as error:
        msg = f"{place} is nested too deeply to be read; leave out what is not scored"
        raise DataInvalid(msg) from error
    except json.JSONDecodeError as error:
        msg = f"{place} is no JSON: {error}"
        raise DataInvalid(msg) from error
    except ValueError as error:
        # What Python itself sets against numbers that take long to read.
        msg = f"{place} has a number with too many digits; leave it out or make it a string"
        raise DataInvalid(msg) from error
    if not isinstance(record, dict):
        msg = f"{place} is no JSON object but {type(record).__name__}"
        raise DataInvalid(msg)
    if field not in record:
        raise missing_field(field, list(record), place)
    return text_field(record[field], field, place)
