"""Versions of what decides a figure, read without importing any of it."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "evaluator": "assay",
}


@cache
def versions() -> dict[str, str]:
    """Of python, the libraries that a figure depends on, and the evaluator."""
    return {
        "python": platform.python_version(),
        **{name: _version(package) for name, package in PACKAGES.items()},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
