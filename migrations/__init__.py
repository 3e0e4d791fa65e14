"""Alembic migrations; part of the package, so that an installed server can migrate."""
