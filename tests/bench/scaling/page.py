"""stub"""

from typing import Any


def write_page(*_: Any) -> None: ...
