"""The launcher of parties that run elsewhere: it starts nothing, and opens the gate for those that dial."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from coordinator.errors import PlanError
from coordinator.identity.identity import own_identity
from coordinator.plan.plan import Plan
from coordinator.transport.dialled.standing import StandingWay, standing_folder
from coordinator.transport.dialled.way import opened_gate
from coordinator.transport.launchers import (
    Cluster,
    Launcher,
    LaunchRequest,
    Looked,
    PartyAddress,
    PreviewRequest,
    Simulation,
    SimulationRequest,
    find_launcher,
)


def launcher_of(plan: Plan) -> Launcher:
    """What starts a plan's parties, or connects to them. Raises `PlanError` naming the launchers there are."""
    return Connecting(plan) if plan.federation.shards is None else find_launcher(plan.federation.launch)


class Connecting:
    """Parties at the addresses in the plan, and those that dial the gate while a launch lasts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @contextmanager
    def launch(self, request: LaunchRequest) -> Iterator[tuple[PartyAddress, ...]]:
        """The addresses. Raises `RunError` where the gate cannot listen, and as `own_identity` does."""
        federation = self._plan.federation
        direct = [PartyAddress(each.name, each.address) for each in federation.parties if each.address is not None]
        dialling = [each.name for each in federation.parties if each.dials]
        if not dialling:
            yield tuple(direct)
            return
        assert federation.listen is not None, "the plan was checked"
        if (folder := standing_folder(federation.listen)) is not None:
            stands = [StandingWay(name, folder) for name in dialling]
            through = [PartyAddress(way.name, way.address, way=way) for way in stands]
            yield tuple(sorted([*direct, *through], key=lambda each: each.name))
            return
        identity = own_identity(self._plan, request.base).identity
        with opened_gate(federation.listen, dialling, identity) as ways:
            gate = next(iter(ways.values())).gate
            request.say(f"  the gate is open at {gate.address} for {', '.join(dialling)}")
            dialled = [PartyAddress(name, way.address, way=way) for name, way in ways.items()]
            yield tuple(sorted([*direct, *dialled], key=lambda each: each.name))

    def begun(self, parties: Sequence[str], recipe: str = "", most: int | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def look(self, cluster: Cluster) -> str:
        raise PlanError('[federation] launch = "connect": parties run already, and are put on no cluster.')

    def preview(self, request: PreviewRequest) -> Looked:
        raise PlanError(
            '[federation] launch = "connect": these parties\' text is their own, and nobody else looks at it. Each '
            "administrator sees what would be used with: party preview"
        )

    def simulate(self, request: SimulationRequest) -> Simulation:
        raise PlanError(
            '[federation] launch = "connect": comparing shows rows without privacy, and these parties\' text is their '
            "own. Compare on a simulation: [federation.shards] with text that is nobody's secret."
        )
