from pathlib import Path

import pytest

from app.errors import (
    ApiError,
    DataNotFound,
    HubDisabled,
    InlineTooLarge,
    ModelIncomplete,
    ModelNotFound,
    PathNotAllowed,
    WeightsUnsafe,
)
from app.jobs.paths import resolve_data, resolve_model
from app.settings import Settings
from evaluator.contract.data import (
    CsvData,
    FolderData,
    HubData,
    InlineData,
    KnownData,
    TextData,
)
from evaluator.contract.launch import FolderModel, GgufModel, HubModel


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("models", "data", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside/secret.txt").write_text("secret")
    (tmp_path / "data/a.txt").write_text("text")
    return Settings(
        model_roots=(tmp_path / "models",), data_roots=(tmp_path / "data",), inline_max_bytes=10
    )


def text(path: str) -> TextData:
    return TextData(kind="text", path=path)


def folder(path: str) -> FolderModel:
    return FolderModel(kind="folder", path=path)


def test_a_path_inside_the_root_becomes_absolute(settings: Settings, tmp_path: Path) -> None:
    for written in ("a.txt", "./a.txt", "sub/../a.txt", str(tmp_path / "data/a.txt")):
        assert resolve_data(text(written), settings) == text(str(tmp_path / "data/a.txt"))


@pytest.mark.parametrize(
    "written",
    [
        "../outside/secret.txt",
        "../../../../../../etc/passwd",
        "/etc/passwd",
        "a.txt/../../outside/secret.txt",
        "link",
        "folder-link/secret.txt",
        "loop",
        "x" * 300,
    ],
)
def test_what_leads_outside_is_refused(settings: Settings, tmp_path: Path, written: str) -> None:
    (tmp_path / "data/link").symlink_to(tmp_path / "outside/secret.txt")
    (tmp_path / "data/folder-link").symlink_to(tmp_path / "outside")
    (tmp_path / "data/loop").symlink_to(tmp_path / "data/loop")
    with pytest.raises(ApiError) as caught:
        resolve_data(text(written), settings)
    assert isinstance(caught.value, PathNotAllowed | DataNotFound)
    assert caught.value.pointer == "/data/path"


@pytest.mark.parametrize(
    "written",
    ["..%2foutside/secret.txt", "%252e%252e/x", "C:\\x", "a#/../..", "file:///etc/passwd"],
)
def test_encodings_mean_nothing(settings: Settings, written: str) -> None:
    with pytest.raises(ApiError):
        resolve_data(text(written), settings)


def test_what_is_missing_inside_says_where_it_was_looked_for(settings: Settings) -> None:
    with pytest.raises(DataNotFound, match=r"nothing is at 'b.txt'.*data"):
        resolve_data(text("b.txt"), settings)
    with pytest.raises(ModelNotFound):
        resolve_model(folder("nothing"), settings)


def test_pickled_weights_are_refused(settings: Settings, tmp_path: Path) -> None:
    model = tmp_path / "models/m"
    model.mkdir()
    with pytest.raises(ModelIncomplete, match=r"config\.json"):
        resolve_model(folder("m"), settings)
    (model / "config.json").write_text("{}")
    with pytest.raises(ModelIncomplete, match="safetensors"):
        resolve_model(folder("m"), settings)
    (model / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsUnsafe):
        resolve_model(folder("m"), settings)
    (model / "model.safetensors").write_bytes(b"")
    assert resolve_model(folder("m"), settings) == folder(str(model))


def test_a_gguf_must_be_a_file(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "models/dir.gguf").mkdir()
    with pytest.raises(ModelNotFound):
        resolve_model(GgufModel(kind="gguf", path="dir.gguf"), settings)


def test_the_hub_is_off_unless_set(settings: Settings) -> None:
    model = HubModel(kind="hub", name="org/name")
    with pytest.raises(HubDisabled):
        resolve_model(model, settings)
    assert resolve_model(model, Settings(allow_hub=True)) == model


def test_inline_bytes_are_counted_as_utf8(settings: Settings) -> None:
    fits = InlineData(kind="inline", documents=("ééééé",))  # 10 bytes
    assert resolve_data(fits, settings) == fits
    with pytest.raises(InlineTooLarge, match="11 bytes, more than 10"):
        resolve_data(InlineData(kind="inline", documents=("ééééé", "a")), settings)


def test_a_folder_of_texts_is_confined_as_a_file_is(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "data/books").mkdir()
    books = FolderData(kind="folder", path="books", pattern="*.md")
    resolved = resolve_data(books, settings)
    assert resolved == books.model_copy(update={"path": str(tmp_path / "data/books")})
    assert resolve_data(FolderData(kind="folder", path="."), settings) == FolderData(
        kind="folder", path=str(tmp_path / "data")
    )
    (tmp_path / "data/link").symlink_to(tmp_path / "outside")
    for written in ("../outside", "link", str(tmp_path)):
        with pytest.raises(PathNotAllowed):
            resolve_data(FolderData(kind="folder", path=written), settings)


def test_files_and_folders_are_told_apart(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "data/books").mkdir()
    with pytest.raises(DataNotFound, match=r"a\.txt is not a folder; take kind 'text'"):
        resolve_data(FolderData(kind="folder", path="a.txt"), settings)
    for wrong in (text("books"), CsvData(kind="csv", path="books")):
        with pytest.raises(DataNotFound, match="books is not a file; take kind 'folder'"):
            resolve_data(wrong, settings)


WIKITEXT = KnownData(kind="known", name="wikitext-2")


def test_a_known_set_needs_the_mirror_or_the_hub(settings: Settings, tmp_path: Path) -> None:
    assert resolve_data(WIKITEXT, Settings(allow_hub=True)) == WIKITEXT
    mirror = tmp_path / "mirror"
    folder = mirror / "Salesforce/wikitext/wikitext-2-raw-v1"
    mirrored = settings.model_copy(update={"mirror_dir": mirror})
    with pytest.raises(HubDisabled) as caught:
        resolve_data(WIKITEXT, mirrored)
    # Both ways out are named.
    assert f"no copy of 'wikitext-2': put its Parquet files at {folder}/test" in caught.value.detail
    assert "ASSAY_ALLOW_HUB=true" in caught.value.detail
    assert caught.value.pointer == "/data"
    with pytest.raises(HubDisabled, match=r"\$ASSAY_MIRROR_DIR/Salesforce"):
        resolve_data(WIKITEXT, settings)
    folder.mkdir(parents=True)
    (folder / "test-00000-of-00001.parquet").touch()
    assert resolve_data(WIKITEXT, mirrored) == WIKITEXT
    # The mirror has this split of this config alone.
    with pytest.raises(HubDisabled):
        resolve_data(KnownData(kind="known", name="wikitext-103"), mirrored)
    hub = HubData(kind="hub", name="Salesforce/wikitext", config="wikitext-2-raw-v1")
    assert resolve_data(hub, mirrored) == hub
    with pytest.raises(HubDisabled):
        resolve_data(hub.model_copy(update={"split": "train"}), mirrored)
    with pytest.raises(HubDisabled):
        resolve_data(hub.model_copy(update={"config": "../../../outside"}), mirrored)


def test_a_mirror_says_that_it_has_no_revisions(settings: Settings, tmp_path: Path) -> None:
    files = tmp_path / "mirror/acme/wiki"
    files.mkdir(parents=True)
    (files / "test.parquet").touch()
    mirrored = settings.model_copy(update={"mirror_dir": tmp_path / "mirror"})
    source = HubData(kind="hub", name="acme/wiki", revision="v2")
    with pytest.raises(
        HubDisabled, match=r"`main` only, not v2: leave .* ASSAY_ALLOW_HUB=true"
    ) as raised:
        resolve_data(source, mirrored)
    assert raised.value.pointer == "/data/revision"
    main = source.model_copy(update={"revision": "main"})
    assert resolve_data(main, mirrored) == main
    with pytest.raises(HubDisabled, match="has no copy of"):
        resolve_data(source, settings)
