"""Documents to token ids, kept in a cache on disk."""
