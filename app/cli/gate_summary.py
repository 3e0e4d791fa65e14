"""A gate's verdict for people and for CI: lines, Markdown, JUnit. Pure but for the writing."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.text import Text

from app.cli.numbers import DASH, count, plain

Json = dict[str, Any]

_STYLES = {"pass": "bold green", "regression": "bold red"}


def verdict_text(verdict: str) -> Text:
    """Return a verdict in its colour."""
    return Text(plain(verdict).replace("_", " "), style=_STYLES.get(verdict, "bold yellow"))


def gate_lines(found: Json) -> Iterable[tuple[str, str | Text]]:
    """Return names with their values, as `print_facts` takes them."""
    yield "verdict", verdict_text(found["verdict"])
    yield "candidate", plain(found["candidate"])
    yield "baseline", plain(found["baseline"] or DASH)
    for outcome in found["outcomes"]:
        yield rule_name(outcome["rule"]), plain(outcome["sentence"])
    for each in found["differs"]:
        yield plain(each["name"]), f"{plain(each['baseline'])} -> {plain(each['candidate'])}"


def rule_name(rule: Json) -> str:
    """Return a rule in a few words."""
    if rule["kind"] == "limit":
        return f"{plain(rule['figure']).replace('_', ' ')} at most {rule['at_most']:g}"
    name = plain(rule["kind"]).replace("_", " ")
    return f"{name} less than {rule['max_regression_percent']:g} % worse"


def write_summary(path: Path, found: Json) -> None:
    """Write JUnit XML where the name ends in .xml, else Markdown.

    Raises:
        OSError: the file can't be written.
    """
    text = to_junit(found) if path.suffix.lower() == ".xml" else to_markdown(found)
    path.write_text(text, encoding="utf-8")


def to_markdown(found: Json) -> str:
    """Return a heading, the sentence, and a table of the rules."""
    rows = [
        f"### Gate: {_cell(found['verdict'].replace('_', ' '))}",
        "",
        _cell(found["sentence"]),
        "",
        "| rule | verdict | baseline | candidate | change | at least | at most | more needed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for outcome in found["outcomes"]:
        cells = [
            rule_name(outcome["rule"]),
            outcome["verdict"].replace("_", " "),
            *_values(outcome),
        ]
        rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    baseline = DASH if found["baseline"] is None else f"`{_cell(found['baseline'])}`"
    rows += ["", f"Candidate `{_cell(found['candidate'])}`, baseline {baseline}."]
    return "\n".join(rows) + "\n"


def _values(outcome: Json) -> list[str]:
    """Return baseline, candidate, change, its bounds, and how much more is needed."""
    if outcome["rule"]["kind"] == "limit":
        return [DASH, _number(outcome["value"]), *[DASH] * 4]
    numbers = outcome["numbers"]
    if numbers is None:
        return [DASH] * 6
    percents = (numbers[f"{name}_percent"] for name in ("change", "lower", "upper"))
    return [
        _number(numbers["baseline"]),
        _number(numbers["candidate"]),
        *(DASH if each is None else f"{each:+.3g} %" for each in percents),
        _more(numbers),
    ]


def _more(numbers: Json) -> str:
    """Return how much would settle it, and of what."""
    for noun in ("tokens", "runs"):
        number = numbers.get(f"num_more_{noun}")
        if number is not None:
            return f"{count(number)} {noun}"
    return DASH


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.6g}"


def _cell(text: object) -> str:
    """Return text that can't end its cell, or begin anything."""
    return plain(text).replace("\n", " ").replace("|", r"\|").replace("<", "&lt;").replace("`", "'")


def to_junit(found: Json) -> str:
    """Return a case for each rule: a regression is a failure, what can't be told an error."""
    outcomes = found["outcomes"]
    verdicts = [outcome["verdict"] for outcome in outcomes]
    counts = {
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count("regression")),
        "errors": str(len(verdicts) - verdicts.count("regression") - verdicts.count("pass")),
    }
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": "assay gate", **counts})
    properties = ET.SubElement(suite, "properties")
    for name in ("candidate", "baseline"):
        value = plain(found[name] or DASH)
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for outcome in outcomes:
        names = {"classname": "assay.gate", "name": rule_name(outcome["rule"])}
        case = ET.SubElement(suite, "testcase", names)
        verdict, sentence = outcome["verdict"], plain(outcome["sentence"])
        if verdict == "pass":
            ET.SubElement(case, "system-out").text = sentence
        else:
            kind = "failure" if verdict == "regression" else "error"
            ET.SubElement(case, kind, {"type": verdict, "message": sentence})
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
