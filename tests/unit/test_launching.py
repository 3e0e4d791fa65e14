"""What a run is told of its job."""

from pathlib import Path
from typing import Any

import pytest

from app.models import Attempt, Job
from app.settings import Settings
from app.workers.launching import Claimed, _spec
from evaluator.contract.launch import LaunchSpec


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    model = tmp_path / "models/tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").touch()
    return Settings(model_roots=(tmp_path / "models",), state_dir=tmp_path / "state")


def spec_of(settings: Settings, **request: Any) -> LaunchSpec:
    asked = {"model": {"kind": "folder", "path": "tiny"}, **request}
    job = Job(id="job_1", request=asked, device="cpu")
    claimed = Claimed(job=job, attempt=Attempt(id="att_1", number=2), token="secret")
    return _spec(claimed, settings.runs_dir / "job_1/2", settings, has_finished=False)


def inline(**fields: Any) -> dict[str, Any]:
    return {"kind": "inline", "documents": ["a"], **fields}


def test_a_run_is_told_where_the_mirror_is(settings: Settings, tmp_path: Path) -> None:
    mirrored = settings.model_copy(update={"mirror_dir": tmp_path / "mirror"})
    assert spec_of(mirrored, data=inline()).mirror_dir == str(tmp_path / "mirror")
    assert spec_of(settings, data=inline()).mirror_dir is None


def test_a_run_finds_a_relative_mirror(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run's working directory is not the server's.
    monkeypatch.chdir(tmp_path)
    relative = settings.model_copy(update={"mirror_dir": Path("mirror")})
    assert spec_of(relative, data=inline()).mirror_dir == str(tmp_path / "mirror")


def test_outputs_and_data_are_the_requests(settings: Settings) -> None:
    data = inline(errors="replace", first=1, sample={"num_documents": 1, "seed": 3}, join="\n")
    spec = spec_of(settings, data=data, outputs={"token_nll": "uint8"})
    assert spec.outputs.token_nll == "uint8"
    assert spec.data.model_dump(exclude_none=True) == {**data, "documents": ("a",)}
    assert spec_of(settings, data=inline()).outputs.token_nll == "none"


def test_a_known_set_stays_a_name(settings: Settings) -> None:
    online = settings.model_copy(update={"allow_hub": True})
    spec = spec_of(online, data="wikitext-2")
    assert spec.data.kind == "known"
    assert LaunchSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_run_is_told_the_bound_of_the_cache(settings: Settings) -> None:
    assert spec_of(settings, data=inline()).cache_limit_bytes == 32 * 2**30
    small = settings.model_copy(update={"cache_limit_bytes": 7})
    assert spec_of(small, data=inline()).cache_limit_bytes == 7
