"""Background loops of the server: dispatch queued jobs, look after launches."""

from app.workers.workers import Workers

__all__ = ["Workers"]
