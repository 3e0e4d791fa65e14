"""Tells forges what happens to the jobs of their commits."""
