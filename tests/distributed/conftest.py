"""The tiny model that the runs score with."""

from pathlib import Path

import pytest

from tests.support.tiny import save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model; nobody writes to it."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))
