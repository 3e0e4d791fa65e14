"""Rules for unit tests, and the tiny model that several of them load."""

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run, however slow the machine is at the moment.
settings.register_profile("assay", deadline=None, derandomize=True)
settings.load_profile("assay")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model; nobody writes to it."""
    # Only tests that ask for it pay for the import of torch.
    from tests.support.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny"))
