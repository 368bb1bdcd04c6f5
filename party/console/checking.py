"""Checks before a party serves and before a run begins: whether everything is there, and whether there is room.

Nothing is served, charged or sent, and no text of a record is shown.
"""

import glob
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from cryptography import x509

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import HEURISTIC
from learning.errors import ComputeError
from learning.models.machine import processors
from learning.text.codes import MOST_CELLS
from learning.text.source import Source
from party.config import PartyConfig, ShardTable, located, read_config, split_address
from party.errors import PartyError
from party.ledger.accounts import check as check_cap
from party.ledger.accounts import find, is_charged, missing
from party.ledger.database import FILE, reading
from party.ledger.protection import of_policy
from party.node.identity import own_identity
from party.node.serving import check_free
from party.node.traces import check_traces
from party.shard.units import source_of
from party.tasks.machine import Machine
from protos import PROTOCOL_VERSION
from protos.console.checklist import Line, free_disk, free_memory, ok, size, to_do, warning
from protos.console.settings import SettingsError
from protos.identity.certificates import UNREADABLE
from protos.telemetry.tracing import is_url

WORDS: Final = 1000
"""The size of the vocabulary that `check` assumes, since no plan is known: a plan's default."""

NODE_MEMORY: Final = 180 * 2**20
TRAINING_MEMORY: Final = 200 * 2**20
WORD_MEMORY: Final = 300 * 2**10
"""Bytes of the node; of a training process before it has a model; and, for each word, of its model and fit."""

LEAST_DISK: Final = 256 * 2**20
CELL_DISK: Final = 16
"""Bytes of ledger, log and artefacts; and, for each cell of words x words, of a bounded sum and its blocks."""

CODED_RECORDS: Final = 10_000
SHOWN_VALUES: Final = 8
"""Records whose control codes are looked at; values of a column that are shown, the most frequent ones."""

EXPIRING: Final = timedelta(days=30)
OLD_LIST: Final = timedelta(days=30)


def check(path: Path) -> list[Line]:
    """Check everything about the party file `path` that must be right before `party serve`, one line each, in order."""
    try:
        config = read_config(path)
        base = path.absolute().parent
        shard = located(config.shard, base)
    except SettingsError as error:
        return [to_do("party file", str(error)), _versions()]
    home = config.home(base)
    return [
        ok("party file", f"{path.name}, party {config.name}, shard {config.shard.source}"),
        *_identity(config, base, home),
        _peers(config),
        *_ports(config),
        *_traces(config, base),
        _folder(home),
        _account(config, home),
        _shard(shard, home),
        *_codes(shard, home),
        _policy(config),
        _disk(shard, home),
        _memory(),
        _device(config),
        _versions(),
    ]


def needed_memory(words: int = WORDS) -> int:
    """Upper bound, in bytes, on the memory of the node and one training, for a vocabulary of this many words."""
    return NODE_MEMORY + TRAINING_MEMORY + WORD_MEMORY * words


def needed_disk(words: int = WORDS) -> int:
    """Upper bound, in bytes, on what one run leaves in the party's folder, for a vocabulary of this many words."""
    return LEAST_DISK + CELL_DISK * words**2


def _identity(config: PartyConfig, base: Path, home: Path) -> Iterator[Line]:
    """Check certificates, key, revocation list and clock, or say why there are none."""
    table = config.identity
    if table is None and config.plaintext:
        yield ok("certificates", "none: plain text, on this machine alone, a simulation")
        return
    try:
        own = own_identity(config, home, base, "", None)
    except PartyError as error:
        yield to_do("certificates", str(error))
    else:
        end = min(own.transport.not_valid_after_utc, own.signing.not_valid_after_utc)
        said = (
            f"of party {own.name}, valid until {end:%Y-%m-%d}, issued by the authority that the file names; "
            f"signing key {own.fingerprint}"
        )
        if end - datetime.now(UTC) < EXPIRING:
            yield warning("certificates", f"{said}; have the request signed again soon (coordinator provision sign)")
        else:
            yield ok("certificates", said)
    if table is None:
        return
    yield _key(base / table.key)
    yield _revoked(None if table.revoked is None else base / table.revoked)
    yield from _clock(base / table.certificate)


def _key(path: Path) -> Line:
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        return to_do("key", f"{path}: {error.strerror}. `party enroll` makes one.")
    if mode & 0o077:
        return to_do("key", f"others on this machine may read it (mode {mode:04o}). Run: chmod 600 {path}")
    return ok("key", f"{path.name}, mode {mode:04o}")


def _revoked(path: Path | None) -> Line:
    if path is None:
        return warning(
            "revoked", "no list: a coordinator whose certificate was revoked is admitted. Set [identity] revoked."
        )
    try:
        made = x509.load_pem_x509_crl(path.read_bytes()).last_update_utc
    except (OSError, *UNREADABLE) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no revocation list"
        return to_do("revoked", f"{path}: {why}. Get revoked.pem from whoever runs the federation.")
    age = max(0, (datetime.now(UTC) - made).days)
    said = f"{path.name}, {age} {'day' if age == 1 else 'days'} old"
    if age > OLD_LIST.days:
        return warning("revoked", f"{said}; ask whoever runs the federation whether there is a newer one")
    return ok("revoked", said)


def _clock(path: Path) -> Iterator[Line]:
    """Check that the certificates were issued in the past; otherwise this machine's clock is slow."""
    try:
        issued = max(each.not_valid_before_utc for each in x509.load_pem_x509_certificates(path.read_bytes()))
    except (OSError, *UNREADABLE):
        return
    now = datetime.now(UTC)
    if now < issued:
        yield to_do(
            "clock",
            f"it says {now:%Y-%m-%d %H:%M} UTC, and the certificates are from {issued:%Y-%m-%d %H:%M}, which is later. "
            "Set this machine's clock; if it is right, the clock where they were issued is wrong.",
        )
    else:
        yield ok("clock", f"{now:%Y-%m-%d %H:%M:%S} UTC, after the certificates were issued")


def _peers(config: PartyConfig) -> Line:
    """Check whether enough peers are pinned for any plan, and name them."""
    policy, pinned = config.policy, sorted(set(config.peers) - {config.name})
    if policy.simulation:
        return ok("peers", f"pinned: {', '.join(pinned)}" if pinned else "none pinned: a simulation")
    if not pinned:
        return warning(
            "peers",
            "none pinned: every other party may be made up, so a plan that counts on the noise of others is refused. "
            "Pin their fingerprints in [peers], as their administrators read them out",
        )
    if 1 + len(pinned) < policy.minimum_parties:
        return warning(
            "peers",
            f"pinned: {', '.join(pinned)}; with this party that is less than minimum_parties = "
            f"{policy.minimum_parties}, so every plan is refused. Pin the others, or lower minimum_parties",
        )
    return ok("peers", f"pinned: {', '.join(pinned)}")


def _ports(config: PartyConfig) -> Iterator[Line]:
    listens = {"port": config.listen}
    if config.metrics is not None:
        listens["metrics port"] = config.metrics.listen
    for what, listen in listens.items():
        host, port = split_address(listen)
        try:
            check_free(config.name, host, port)
        except PartyError as error:
            yield to_do(what, f"{error} (If this party serves already, that is its own node.)")
        else:
            yield ok(what, f"{listen} is free")


def _traces(config: PartyConfig, base: Path) -> Iterator[Line]:
    if config.traces is None:
        return
    try:
        check_traces(config, base)
    except PartyError as error:
        yield to_do("traces", str(error))
    else:
        how = "sent to the collector at" if is_url(config.traces.to) else "written to the file"
        yield ok("traces", f"this party's spans are {how} {config.traces.to}")


def _folder(home: Path) -> Line:
    if not home.exists():
        above = next(each for each in home.parents if each.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            return to_do("folder", f"{home} cannot be made: {above} is not writable for this user.")
        return ok("folder", f"{home} will be made")
    if not home.is_dir() or not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return to_do("folder", f"{home} is not a folder that this user can write in. Change its owner, or set folder.")
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        return to_do("folder", f"others on this machine may enter {home} (mode {mode:04o}). Run: chmod 700 {home}")
    return ok("folder", f"{home}, mode {mode:04o}")


def _account(config: PartyConfig, home: Path) -> Line:
    policy, path = config.policy, home / FILE
    opening = f"{config.lineage} is not open yet. To open it, for good: party account open --config FILE"
    try:
        if not path.exists():
            return ok("account", "a simulation's: serving opens it") if policy.simulation else to_do("account", opening)
        with reading(path) as sql:
            own = find(sql, config.lineage)
            if own is None and policy.simulation:
                return ok("account", "a simulation's: serving opens it")
            if own is None:
                raise missing(sql, config.lineage, home)
            stated = own.protection is not None or (is_charged(sql, own) and not policy.simulation)
            about = of_policy(policy) if stated else None  # one never charged takes the policy's cap when it serves
            check_cap(own, policy.epsilon, policy.delta, policy.simulation, path, about)
            from party.ledger.lineages import budget_of, group_of  # the accountants take a second to import

            budget = budget_of(sql, group := group_of(sql, own))
    except ConclaveError as error:
        return to_do("account", str(error))
    if budget.left is None and group.hindered:
        return to_do("account", f"{own.lineage}: every plan is refused: {group.hindered}. Name another account.")
    if budget.left is None:
        return ok("account", f"{own.lineage}: no cap; every release without a guarantee is recorded")
    if not budget.left:
        return to_do("account", f"{own.lineage}: nothing is left of {own.cap}, so every plan is refused.")
    return ok(
        "account",
        f"{own.lineage}: a release of epsilon {math.floor(budget.left * 1000) / 1000:g} at delta {own.delta:g} is left "
        f"of {own.epsilon:g} for {of_policy(policy)}",
    )


def _shard(shard: ShardTable, home: Path) -> Line:
    """Check that the shard has a usable record: reads up to the first one, and does not look at its text."""
    from learning.text.source import read

    with _cached(shard, home) as (source, cache):
        try:
            next(read(source, cache))
        except (ConclaveError, OSError) as error:
            return to_do("shard", str(error))
    return ok("shard", f"{shard.source} can be read; columns {', '.join(source_of(shard).mapped)}")


def _codes(shard: ShardTable, home: Path) -> Iterator[Line]:
    """Say what the first records hold in each column of control codes: for the administrator, who opened them."""
    from learning.text.source import records

    if not shard.codes:
        return
    found: dict[str, Counter[str]] = {name: Counter() for name in shard.codes}
    with _cached(shard, home) as (source, cache):
        source = replace(source, columns=(*source.columns, *shard.codes.values()))
        try:
            for document in islice(records(source, cache), CODED_RECORDS):
                for name, column in shard.codes.items():
                    found[name][document.fields.get(column, "").strip() if document is not None else ""] += 1
        except (ConclaveError, OSError) as error:
            yield to_do("codes", str(error))
            return
    said, many = [], False
    for name, values in found.items():
        rows, without = values.total(), values.pop("", 0)
        shown = ", ".join(f"{value[:20]!r} {count:,}" for value, count in values.most_common(SHOWN_VALUES))
        more = f" and {len(values) - SHOWN_VALUES:,} more" if len(values) > SHOWN_VALUES else ""
        said.append(f'{name} = "{shard.codes[name]}": {shown}{more}; none in {without:,} of the first {rows:,} records')
        many = many or len(values) > MOST_CELLS or without == rows
    line = "; ".join(said) + ". Plans may read these, and name the values that count"
    yield warning("codes", f"{line}; such a column makes no codes") if many else ok("codes", line)


@contextmanager
def _cached(shard: ShardTable, home: Path) -> Iterator[tuple[Source, Path]]:
    """The shard's source and cache. If nothing is cached yet, a download from the hub is begun but not completed."""
    with TemporaryDirectory(prefix="conclave-check-") as folder:
        cache, looked = home / "cache", shard
        if not cache.is_dir():
            cache, looked = Path(folder), shard.model_copy(update={"stream": True})
        yield source_of(looked), cache


def _policy(config: PartyConfig) -> Line:
    """Warn about rules that are valid by themselves but contradict each other or the party's size."""
    policy = config.policy
    records = policy.declared_size
    if records is not None and policy.delta is not None and policy.delta * records >= 1:
        return warning(
            "policy",
            f"delta = {policy.delta:g} with declared_size = {records:,} allows a record or more to be shown outright; "
            f"below {1 / records:.0e} it would not",
        )
    if policy.simulation and config.identity is not None:
        return warning("policy", "simulation = true admits noise that protects nobody: right only for public text")
    rules = [
        f"epsilon {policy.epsilon:g} and delta {policy.delta:g} for {of_policy(policy)}, for the life of the data"
        if policy.guarantee
        else f"{HEURISTIC}, and no other plans",
        f"recipes {', '.join(policy.recipes)}",
        f"minimum_parties {policy.minimum_parties}",
        f"trust {policy.trust or ('as the plan says' if policy.simulation else 'secure-sum')}",
    ]
    if policy.minimum_noise is not None:
        rules.append(f"noise multipliers from {policy.minimum_noise:g}")
    if policy.maximum_queries is not None:
        rules.append(f"at most {policy.maximum_queries:,} queries")
    may = ("clear_votes", "weights", "samples", "public_labels", "simulation")
    if granted := [rule for rule in may if getattr(policy, rule)]:
        rules.append(f"allowed: {', '.join(granted)}")
    return ok("policy", "; ".join(rules))


def _disk(shard: ShardTable, home: Path) -> Line:
    needed, why = needed_disk(), f"a run with {WORDS:,} words"
    if shard.user is not None:
        needed += _bytes_of(Path(shard.source))
        why += " that protects users, for which the shard is sorted on disk,"
    free = free_disk(home)
    if free < needed:
        return to_do("disk", f"{size(free)} are free in {home}, and {why} may take {size(needed)}. Make room there.")
    return ok("disk", f"{size(free)} are free; {why} takes up to {size(needed)}")


def _bytes_of(source: Path) -> int:
    """Bytes of a local source; 0 for a source elsewhere."""
    if source.is_dir():
        return sum(each.stat().st_size for each in source.rglob("*") if each.is_file())
    if source.is_file():
        return source.stat().st_size
    return sum(Path(each).stat().st_size for each in glob.glob(str(source), recursive=True) if Path(each).is_file())


def _memory() -> Line:
    free, needed = free_memory(), needed_memory()
    if free is None:
        return warning("memory", f"this system does not say how much is free; {size(needed)} are needed")
    if free < needed:
        return to_do(
            "memory",
            f"{size(free)} are free, and a training with {WORDS:,} words may take {size(needed)}. End other programs, "
            "or give this machine more.",
        )
    most = max(WORDS, (free - needed_memory(0)) // WORD_MEMORY // 1000 * 1000)
    return ok("memory", f"{size(free)} are free: enough for {most:,} words; {size(needed)} are enough for {WORDS:,}")


def _device(config: PartyConfig) -> Line:
    """What trainings of text models run on, and what else is there. Torch is asked only where that may matter."""
    try:
        found = Machine.looked_up(config.compute)
    except ComputeError as error:
        return to_do("device", str(error))
    threads = found.usual.threads
    many = f"{threads} of {processors()}" if threads else f"{processors()}"
    there = f"; there are {', '.join(found.there)}" if len(found.there) > 1 else ""
    return ok("device", f"text models run on {found.usual.device} in {found.usual.precision}, {many} processors{there}")


def _versions() -> Line:
    here = f"Conclave {version('conclave-distill')}, protocol {PROTOCOL_VERSION}, Python {sys.version.split()[0]}"
    missing = [name for name in ("torch", "safetensors", "pyarrow") if find_spec(name) is None]
    if missing:
        return to_do(
            "versions", f"{here}, without {', '.join(missing)}. Install Conclave again: pip install conclave-distill"
        )
    return ok("versions", here)
