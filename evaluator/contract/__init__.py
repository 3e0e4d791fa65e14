"""What crosses the boundary between the server (`app`) and a run (`evaluator`).

Holds types only, on pydantic and the standard library. A type enters this package when it is sent
between the two, and for no other reason.
"""

from typing import Final

CONTRACT_VERSION: Final = 1
