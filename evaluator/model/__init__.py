"""Finds, loads and cuts a model; knows devices."""
