"""Tells others what happens to jobs: signed HTTP requests to the addresses they gave."""
