"""How long a federation's certificates are valid. It imports nothing: a command shows its help without cryptography."""

from typing import Final

DAYS: Final = 365
