"""Which part of a stored tensor a rank has: arithmetic on ranges, and reading them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from evaluator.errors import WeightsInvalid
from evaluator.parallel.group import ALONE, Place

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

Ranges = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """This rank's part of a tensor, along one dimension."""

    dim: int = 0
    place: Place = ALONE
    num_pieces: int = 1
    """Equal pieces that are split each by itself: 3 where query, key and value lie in one."""
    first_only: bool = False
    """Zero on all ranks but the first, such as a bias of products that are summed over ranks."""

    def ranges(self, size: int) -> Ranges:
        """Of a dimension of the stored tensor."""
        piece = size // self.num_pieces
        begin, end = (0, piece) if self.first_only else self.place.bounds(piece)
        return [(number * piece + begin, number * piece + end) for number in range(self.num_pieces)]

    @property
    def is_zero(self) -> bool:
        """True where this rank has zeros instead of what is stored."""
        return self.first_only and self.place.index > 0


WHOLE = Part()


def clip(ranges: Ranges, begin: int, end: int) -> Ranges:
    """What lies at positions `begin` to `end` of the ranges laid end to end."""
    clipped = []
    for low, high in ranges:
        first, last = max(begin, 0), min(end, high - low)
        if first < last:
            clipped.append((low + first, low + last))
        begin, end = begin - (high - low), end - (high - low)
    return clipped


@dataclass(frozen=True)
class Store:
    """The safetensors files of a folder, by tensor."""

    folder: Path
    files: dict[str, str]

    def shape(self, name: str) -> list[int]:
        """Of a stored tensor."""
        with self._open(name) as file:
            shape: list[int] = file.get_slice(name).get_shape()
            return shape

    def read(self, name: str, rows: Ranges, columns: Ranges | None) -> torch.Tensor:
        """Rows, and of matrices columns, of a stored tensor.

        The file is mapped for this one read: what stays mapped counts as memory of the rank.
        """
        with self._open(name) as file:
            stored = file.get_slice(name)
            blocks = [
                stored[low:high]
                if columns is None
                else torch.cat([stored[low:high, left:right] for left, right in columns], dim=1)
                for low, high in rows
            ]
        return torch.cat(blocks) if len(blocks) > 1 else blocks[0]

    def num_elements(self) -> int:
        """Of all tensors together."""
        total = 0
        for path in set(self.files.values()):
            with safe_open(self.folder / path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no dictionary
                    total += torch.Size(file.get_slice(name).get_shape()).numel()
        return total

    def _open(self, name: str) -> safe_open:
        return safe_open(self.folder / self.files[name], framework="pt")


def open_store(folder: Path) -> Store:
    """Find where each tensor is.

    Raises:
        WeightsInvalid: There is neither an index nor the one file, or the index is broken.
    """
    index = folder / INDEX_FILE
    try:
        if index.is_file():
            return Store(folder, dict(json.loads(index.read_text())["weight_map"]))
        if (folder / SINGLE_FILE).is_file():
            with safe_open(folder / SINGLE_FILE, framework="pt") as file:
                return Store(folder, dict.fromkeys(file.keys(), SINGLE_FILE))
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{folder}: the list of its tensors can't be read: {error}"
        raise WeightsInvalid(msg) from error
    msg = f"{folder} has neither {INDEX_FILE} nor {SINGLE_FILE}, so it can't be read in parts"
    raise WeightsInvalid(msg)


def find_name(store: Store, names: Sequence[str], prefix: str) -> str | None:
    """The first of the names that is stored, with or without the prefix of the body."""
    candidates = [form for name in names for form in (name, name.removeprefix(f"{prefix}."))]
    return next((name for name in candidates if name in store.files), None)
