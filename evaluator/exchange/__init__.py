"""Ranks together: the store, collectives on two levels, what travels."""
