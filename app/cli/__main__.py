"""`python -m app.cli` is `assay`."""

from app.cli.main import main

main()
