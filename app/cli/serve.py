"""`assay serve`: the server in this process."""

import os
from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8321).")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Folder for database, runs and caches (.assay).")
    ] = None,
    model_root: Annotated[
        list[Path] | None,
        typer.Option(help="Folder to read models from; may be repeated (models)."),
    ] = None,
    data_root: Annotated[
        list[Path] | None,
        typer.Option(help="Folder to read texts from; may be repeated (data)."),
    ] = None,
) -> None:
    """Run the server until Ctrl-C or SIGTERM; running jobs go on and are adopted at the next start.

    The same as `python -m app`: each option stands for the environment variable ASSAY_HOST,
    ASSAY_PORT and so on, which has all the other settings too. The log is JSON lines on stderr.
    Exit code 2 means a setting that can't be right, 4 that the port, the state directory or the
    database refuses.
    """
    given = {
        "ASSAY_HOST": host,
        "ASSAY_PORT": port,
        "ASSAY_STATE_DIR": state_dir,
        "ASSAY_MODEL_ROOTS": os.pathsep.join(str(root) for root in model_root or ()),
        "ASSAY_DATA_ROOTS": os.pathsep.join(str(root) for root in data_root or ()),
    }
    os.environ |= {name: str(value) for name, value in given.items() if value not in (None, "")}
    from app.__main__ import main  # a second of imports that no other command needs

    raise typer.Exit(main())
