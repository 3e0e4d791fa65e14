"""Names of files and environment variables that both sides use."""

LAUNCH_ID = "ASSAY_LAUNCH_ID"
"""Random id in the environment of every process of a launch: how they are found again."""

RANKS_PER_NODE = "ASSAY_RANKS_PER_NODE"
"""For tests on CPUs: the ranks of one torchrun count as nodes of so many ranks each."""

SPEC_FILE = "spec.json"
FINISHED_FILE = "finished.jsonl"
TOKEN_FILE = "token"  # noqa: S105 - a file name
SPOOL_DIR = "spool"
"""Holds `rank-<5 digits>.jsonl`, one report a line."""


def spool_name(rank: int) -> str:
    """File name of a rank's spool inside `SPOOL_DIR`."""
    return f"rank-{rank:05d}.jsonl"


WINDOWS_FILE = "windows.jsonl.gz"
"""Per-window records, in text order; written by rank 0 before it sends the result."""
TOKENS_FILE = "tokens.npz"
"""The nll of every scored token, where it was asked for."""
