"""Which rank scores which batch. Pure."""
