"""Finds ranks that compute wrongly."""
