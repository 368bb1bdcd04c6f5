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
    elsewhere, None for a system that has none.
    """

    plan: str
    connect: str | None

    def launched(self, launch: str) -> str:
        """The plan for a way of launching, `ray` or `connect`. Raises `PlanError` for any other, and for a system that
        knows no parties elsewhere.
        """
        if launch not in ("ray", "connect"):
            raise PlanError(f'--launch {launch} is not a way to start parties. Use "ray" or "connect".')
        if launch == "ray":
            return self.plan
        if self.connect is None:
            raise PlanError(
                "--launch connect: this recipe trains on all text in clear, without privacy, and with parties elsewhere"
                " the text would be their own. Leave --launch out, or use another recipe."
            )
        return _FEDERATION.sub(lambda _: f"{self.connect}\n", self.plan, count=1)


def example(package: str) -> Example:
    """The example in `plan.toml` of a system's package, and in its `connect.toml` where there is one."""
    plan, connect = (files(package).joinpath(f"{name}.toml") for name in ("plan", "connect"))
    return Example(plan.read_text(encoding="utf-8"), connect.read_text(encoding="utf-8") if connect.is_file() else None)
