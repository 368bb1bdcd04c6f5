"""`coordinator provision`: make a federation, sign its parties' requests, revoke certificates, renew its own."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from coordinator.errors import PlanError, RunError
from coordinator.identity.terms import DAYS

if TYPE_CHECKING:
    from protos.identity.certificates import Role


class MakingFirst(TyperGroup):
    """A group in which `provision FOLDER ...` means `provision make FOLDER ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does, but put `make` first where the first word is neither a command nor asks for help."""
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = ["make", *args]
        return super().parse_args(ctx, args)


provision = typer.Typer(
    name="provision",
    cls=MakingFirst,
    help="Make a federation's folder (`provision FOLDER --name NAME`), sign requests, revoke, renew.",
    no_args_is_help=True,
    add_completion=False,
)

Federation = Annotated[Path, typer.Option("--federation", metavar="FOLDER", help="The federation's folder.")]
Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="How long the certificates are valid.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")]


@provision.command()
def make(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make.")],
    name: Annotated[str, typer.Option("--name", help="Its name, such as coordinator.consortium.example.")],
    days: Days = DAYS,
    as_json: AsJson = False,
) -> None:
    """Make a federation: its authority and the coordinator's own certificates. The word `make` may be left out."""
    from coordinator.identity import provisioning

    told = provisioning.make(folder, name, days=days)
    if as_json:
        return _json({"folder": str(folder.absolute()), "authority": told})
    print(f"made the federation {folder} of {name}")
    print(f"  authority  {told}")
    print(f"Whoever has {folder / provisioning.CA_KEY} can make up parties: keep it to yourself, and keep a copy safe.")
    print("next: read the authority's fingerprint out to every party by telephone. Each writes it into its party file,")
    print("      runs `party enroll`, and sends its request, which you sign:")
    print(f"      coordinator provision sign NAME.request.pem --federation {folder}")
    return None


@provision.command()
def sign(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="A party's request: NAME.request.pem.")],
    federation: Federation,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="SHA256:...", help="What the party's administrator read aloud."),
    ] = None,
    submitter: Annotated[
        bool, typer.Option("--submitter", help="It is of somebody who submits runs, not of a party.")
    ] = False,
    days: Days = DAYS,
    as_json: AsJson = False,
) -> None:
    """Sign a request, and write NAME.pem beside it. Asks for the fingerprint that you heard by telephone."""
    from coordinator.identity import provisioning
    from protos.identity.certificates import Role
    from protos.identity.validity import moment

    role = Role.SUBMITTER if submitter else Role.PARTY
    issued = provisioning.sign(federation, request, told=fingerprint or _told(request, role), days=days, role=role)
    if as_json:
        return _json({str(role): issued.name, "fingerprint": issued.fingerprint, "certificate": str(issued.path)})
    print(f"signed {issued.name}'s certificates, valid until {moment(issued.until)}: {issued.path}")
    where = "beside submitter.toml" if submitter else "where [identity] certificate says"
    print(f"next: send {issued.path.name} to {issued.name}, who puts it {where}.")
    return None


@provision.command()
def server(federation: Federation, days: Days = DAYS, as_json: AsJson = False) -> None:
    """Make the certificates of a coordinator that stays up (`coordinator serve`), or renew them. The keys stay."""
    from coordinator.identity import provisioning
    from protos.identity.validity import moment

    issued = provisioning.serve(federation, days=days)
    if as_json:
        return _json({"server": issued.name, "fingerprint": issued.fingerprint, "certificate": str(issued.path)})
    print(f"{issued.path} of {issued.name}, valid until {moment(issued.until)}")
    print("next: coordinator serve --config coordinator.toml")
    return None


@provision.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose certificates: a party's, or the coordinator's.")],
    federation: Federation,
    as_json: AsJson = False,
) -> None:
    """Revoke every certificate that was issued to NAME."""
    from coordinator.identity import provisioning

    count = provisioning.revoke(federation, name)
    revoked = federation / provisioning.REVOKED
    if as_json:
        return _json({"name": name, "revoked": count, "list": str(revoked.absolute())})
    print(f"revoked {count} certificates of {name}" if count else f"everything of {name} was revoked before")
    print(f'next: send {revoked} to every party: [identity] revoked = "{provisioning.REVOKED}". It counts at once.')
    return None


@provision.command()
def renew(
    federation: Federation,
    new_keys: Annotated[
        bool, typer.Option("--new-keys", help="Make new keys, where others may know the old ones.")
    ] = False,
    days: Days = DAYS,
    as_json: AsJson = False,
) -> None:
    """Issue the coordinator's own certificates again. The keys stay, unless you ask for new ones."""
    from coordinator.identity import provisioning
    from protos.identity.validity import moment

    issued = provisioning.renew(federation, fresh_keys=new_keys, days=days)
    if as_json:
        return _json({"coordinator": issued.name, "fingerprint": issued.fingerprint, "certificate": str(issued.path)})
    print(f"renewed {issued.path} of {issued.name}, valid until {moment(issued.until)}")
    return None


def _told(request: Path, role: "Role") -> str:
    """The fingerprint of a request, once the person has confirmed that they heard it. Raises where nobody can."""
    from coordinator.identity import provisioning

    asked = provisioning.request_of(request)
    shown = provisioning.compared(asked, role)
    if not _at_a_terminal():
        raise PlanError(
            "nothing was signed: somebody has to compare the request's fingerprint with the one that "
            f"{asked.name}'s administrator reads out by telephone. Give that one: --fingerprint SHA256:...",
            code="C406",
        )
    print(f"{request} asks for certificates for {role} {asked.name}\n  fingerprint  {shown}")
    if not typer.confirm(f"Did {asked.name}'s administrator read out this fingerprint, by telephone?"):
        raise RunError(f"nothing was signed. Find out who sent {request}.", code="C406")
    return shown


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)
