"""`party account`: open an account of the ledger, copy the ledger, and put a copy back."""

import json
import math
import re
import time
from pathlib import Path
from typing import Annotated

import typer

from party.console.options import ConfigOption, JsonOption
from protos.console.mistakes import SettingsError

accounts = typer.Typer(name="account", help="The ledger's accounts.", no_args_is_help=True)

SAME, ALL = "same", "all"
"""What `--spent` may say in place of a figure: as much as the copy says, and as much as the cap admits."""


@accounts.command("open")
def open_account(
    lineage: Annotated[str | None, typer.Argument(help="The account's name; by default the party file's.")] = None,
    config: ConfigOption = Path("party.toml"),
    as_json: JsonOption = False,
) -> None:
    """Open an account with the policy's cap and unit, for the life of its data. Records the time and your user name.

    Under guarantee = false it has no cap: nothing is promised for its records, and every release is recorded.

    For an account that was charged before accounts kept what they protect, it states that: all of it protected this.
    """
    from party.config import LINEAGE, read_config
    from party.ledger.accounts import open_account as opens
    from party.ledger.budget import statements
    from party.ledger.protection import of_policy
    from party.store.runs import private_folder

    settings = read_config(config)
    name = lineage or settings.lineage
    if not re.fullmatch(LINEAGE, name):
        raise SettingsError(f"{name[:80]} is no name for an account. Use letters, digits, dots, _ and -, 64 at most.")
    home, policy = settings.home(config.absolute().parent), settings.policy
    private_folder(home)
    about = of_policy(policy)
    account, new = opens(
        home, name, epsilon=policy.epsilon, delta=policy.delta, simulation=policy.simulation, protection=about
    )
    if as_json:
        said = {"unit": about.unit, "relation": about.relation, "guarantee": account.capped}
        print(json.dumps({"account": account.lineage, "id": account.id, "opened": new} | said))
    elif new and not account.capped:
        print(f"Account {account.lineage} is open, for good, and has no cap: it promises nothing for its records.")
        print("Only plans without a guarantee are admitted. Each of their releases is recorded, and none is refused")
        print("for what left before. Nobody can say what they tell of a record; an audit may measure it.")
        print("Records that left so can never be under the cap of another account here.")
    elif new:
        print(f"Account {account.lineage} is open, for good: {account.cap}.")
        print("A plan that protects anything else is refused.")
        (found,) = statements(home, name)
        if found.budget.left is not None and found.budget.cap is not None and found.budget.left < found.budget.cap:
            print(
                f"A first run may spend epsilon {found.budget.left:.2f} of it: the cap holds for every run to come, "
                "whatever it asks, and so it counts a run for a little more than the run itself does."
            )
        print("Records that another account here was charged for bring those charges with them.")
    else:
        print(f"Account {account.lineage} was open already, for {about}. See party budget.")


@accounts.command()
def backup(
    to: Annotated[Path, typer.Argument(help="The copy's file, which must not be there yet.", metavar="COPY")],
    config: ConfigOption = Path("party.toml"),
    as_json: JsonOption = False,
) -> None:
    """Copy the ledger into a file, whole, also while the node serves.

    The copy has no noise keys. It tells which runs this party took part in, and with it one can find out whether a text
    is among those that were charged: keep it as private as the ledger itself.
    """
    from party.config import read_config
    from party.ledger.copying import back_up

    settings = read_config(config)
    made = back_up(settings.home(config.absolute().parent), to)
    if as_json:
        print(json.dumps({"copy": str(made.path), "accounts": made.accounts, "charges": made.charges}))
        return
    accounts_, charges = _many(made.accounts, "account"), _many(made.charges, "charge")
    print(f"{made.path}: {accounts_} with {charges}. What is charged from now on is not in it.")


@accounts.command()
def restore(
    copy: Annotated[Path, typer.Argument(help="A file that `party account backup` made.", metavar="COPY")],
    spent: Annotated[
        str,
        typer.Option(
            help="What was spent when the ledger was lost, as `party budget` counts it: epsilon in all, rounded up; "
            '"same" where nothing was charged after the copy was made; "all" where nobody knows, and nothing is left.',
            metavar="EPSILON|same|all",
        ),
    ],
    config: ConfigOption = Path("party.toml"),
    as_json: JsonOption = False,
) -> None:
    """Put a copy back where the ledger was lost. Recorded, with what you state and your user name.

    A copy lacks what was charged after it was made, and a ledger that lacks charges promises what does not hold. So you
    state what was spent; what the copy lacks of it is charged. Runs that were open in the copy end here.
    """
    from party.config import read_config
    from party.ledger.copying import restore as put_back

    settings = read_config(config)
    found = put_back(settings.home(config.absolute().parent), copy, _spent(spent))
    if as_json:
        said = {"accounts": found.accounts, "made_at": found.made_at, "ended_runs": found.ended}
        print(json.dumps({"restored": str(copy)} | said))
        return
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.made_at))
    print(f"{', '.join(found.accounts)}: back as on {made}, with what you state of the time since.")
    if found.ended:
        print(f"{_many(found.ended, 'run')} that went on then ended here: a coordinator has to start anew.")
    print("See party budget. The copy served its time: make a new one, and never serve two ledgers of one party.")


def _spent(said: str) -> float | None:
    """What `--spent` says: None for as much as the copy has, infinity for all."""
    if said == SAME:
        return None
    if said == ALL:
        return math.inf
    try:
        epsilon = float(said)
    except ValueError:
        epsilon = math.nan
    if not 0 <= epsilon < math.inf:
        raise SettingsError(
            f'--spent {said[:40]} is no epsilon. State what was spent in all, rounded up, for example 4.5; "{SAME}" '
            f'where nothing was charged after the copy was made; "{ALL}" where you do not know.'
        )
    return epsilon


def _many(count: int, what: str) -> str:
    return f"{count:,} {what if count == 1 else f'{what}s'}"
