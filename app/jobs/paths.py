"""Turns the paths and names of a request into ones a run may open, or refuses them."""

from pathlib import Path

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
from app.settings import Settings
from evaluator.contract.data import DataSource, FolderData, HubData, InlineData, KnownData
from evaluator.contract.known import (
    expand,
    mirror_fault,
    mirror_files,
    mirror_folder,
    mirror_refuses,
)
from evaluator.contract.launch import FolderModel, HubModel, ModelSource

_PICKLED_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def confine(
    written: str, roots: tuple[Path, ...], *, pointer: str, missing: type[ApiError]
) -> Path:
    """Resolve `written` inside one of `roots`, symbolic links followed.

    Args:
        written: a relative path, looked up in each root in turn, or an absolute one.
        roots: the folders that may be read from.
        pointer: JSON pointer of the path in the request.
        missing: the error for a path inside the roots where nothing is.

    Raises:
        PathNotAllowed: the path leads outside of every root.
    """
    resolved_roots = [root.resolve() for root in roots]
    named = "; ".join(str(root) for root in roots) or "none"
    inside = []
    for root in resolved_roots:
        try:
            candidate = (root / written).resolve()
            exists = candidate.exists()
        except (OSError, ValueError, RuntimeError) as error:  # too long, NUL, a loop of links
            msg = f"{written[:80]!r} can't be used as a path: {error.__class__.__name__}"
            raise PathNotAllowed(msg, pointer=pointer) from error
        if not any(candidate.is_relative_to(allowed) for allowed in resolved_roots):
            continue
        if exists:
            return candidate
        inside.append(candidate)
    if inside:
        msg = f"nothing is at {written[:200]!r} in the configured roots ({named})"
        raise missing(msg, pointer=pointer)
    msg = f"{written[:200]!r} leads outside of the configured roots ({named})"
    raise PathNotAllowed(msg, pointer=pointer)


def _check_folder(folder: Path) -> None:
    pointer = "/model/path"
    if not folder.is_dir():
        msg = f"{folder.name} is a file; a model of kind 'folder' is a folder, use kind 'gguf'?"
        raise ModelNotFound(msg, pointer=pointer)
    if not (folder / "config.json").is_file():
        msg = f"{folder.name} has no config.json: save the model with save_pretrained"
        raise ModelIncomplete(msg, pointer=pointer)
    if any(folder.glob("*.safetensors")):
        return
    if any(next(folder.glob(pattern), None) for pattern in _PICKLED_WEIGHTS):
        msg = f"{folder.name} has only pickled weights, which can run code: save as safetensors"
        raise WeightsUnsafe(msg, pointer=pointer)
    msg = f"{folder.name} has no *.safetensors file"
    raise ModelIncomplete(msg, pointer=pointer)


def resolve_model(model: ModelSource, settings: Settings) -> ModelSource:
    """Return `model` with an absolute path.

    Raises:
        ApiError: not allowed, not there, not safe, or the hub is off.
    """
    if isinstance(model, HubModel):
        _need_hub(settings, "/model")
        return model
    path = confine(model.path, settings.model_roots, pointer="/model/path", missing=ModelNotFound)
    if isinstance(model, FolderModel):
        _check_folder(path)
    elif not path.is_file():
        msg = f"{path.name} is not a file"
        raise ModelNotFound(msg, pointer="/model/path")
    return model.model_copy(update={"path": str(path)})


def resolve_data(data: DataSource, settings: Settings) -> DataSource:
    """Return `data` with an absolute path.

    Raises:
        ApiError: not allowed, not there, too large, or the hub is off.
    """
    if isinstance(data, HubData | KnownData):
        _need_mirror_or_hub(data, settings)
        return data
    if isinstance(data, InlineData):
        size = sum(len(text.encode(errors="surrogatepass")) for text in data.documents)
        if size > settings.inline_max_bytes:
            msg = (
                f"the inline documents have {size} bytes, more than {settings.inline_max_bytes}: "
                "put them into a file under a data root"
            )
            raise InlineTooLarge(msg, pointer="/data/documents")
        return data
    path = confine(data.path, settings.data_roots, pointer="/data/path", missing=DataNotFound)
    if isinstance(data, FolderData):
        if not path.is_dir():
            msg = f"{path.name} is not a folder; take kind 'text' for a single file"
            raise DataNotFound(msg, pointer="/data/path")
    elif not path.is_file():
        msg = f"{path.name} is not a file; take kind 'folder' for a folder of text files"
        raise DataNotFound(msg, pointer="/data/path")
    return data.model_copy(update={"path": str(path)})


def _need_mirror_or_hub(data: HubData | KnownData, settings: Settings) -> None:
    """Refuse a hub data set that a run of this server could not get at."""
    source = expand(data) if isinstance(data, KnownData) else data
    if files := mirror_files(settings.mirror_dir, source):
        if (fault := mirror_fault(files)) is not None:
            raise DataNotFound(fault, pointer="/data")
        return
    if settings.allow_hub:
        return
    if (refusal := mirror_refuses(settings.mirror_dir, source)) is not None:
        msg = f"{refusal}, or start the server with ASSAY_ALLOW_HUB=true"
        raise HubDisabled(msg, pointer="/data/revision")
    mirror = settings.mirror_dir or Path("$ASSAY_MIRROR_DIR")
    folder = mirror_folder(mirror, source) or mirror
    msg = (
        f"this server downloads nothing and has no copy of {data.name[:200]!r}: put its Parquet "
        f"files at {folder}/{source.split}*.parquet (see ASSAY_MIRROR_DIR), or start the server "
        "with ASSAY_ALLOW_HUB=true"
    )
    raise HubDisabled(msg, pointer="/data")


def _need_hub(settings: Settings, pointer: str) -> None:
    if not settings.allow_hub:
        msg = (
            "this server downloads nothing: give a local path, or start it with "
            "ASSAY_ALLOW_HUB=true"
        )
        raise HubDisabled(msg, pointer=pointer)
