"""The commented plans that `coordinator init` writes; each system has its own in its folder."""

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from coordinator.errors import PlanError

_FEDERATION: Final = re.compile(r"^\[federation\]$.*?^(?=\[(?!federation))", re.MULTILINE | re.DOTALL)
"""`[federation]` and the tables in it, up to the next table."""


@dataclass(frozen=True, slots=True)
class Example:
    """An example plan. plan: for parties that the coordinator starts itself. connect: `[federation]` of parties
    elsewhere.
    """

    plan: str
    connect: str

    def launched(self, launch: str) -> str:
        """The plan for a way of launching, `ray` or `connect`. Raises `PlanError` for any other."""
        if launch not in ("ray", "connect"):
            raise PlanError(f'--launch {launch} is not a way to start parties. Use "ray" or "connect".')
        if launch == "ray":
            return self.plan
        return _FEDERATION.sub(lambda _: f"{self.connect}\n", self.plan, count=1)


def example(package: str) -> Example:
    """The example in `plan.toml` and `connect.toml` of a system's package."""
    here = files(package)
    return Example(*(here.joinpath(f"{name}.toml").read_text(encoding="utf-8") for name in ("plan", "connect")))
