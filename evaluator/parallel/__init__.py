"""Models larger than one device: ranks that score each batch together. See docs/parallelism.md."""
