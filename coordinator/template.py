"""The commented plan that `coordinator init` writes."""

from coordinator.errors import PlanError

_HEAD = """\
# A Conclave plan. Run it with: coordinator run plan.toml
# Paths in it start at this file's folder.

[run]
name   = "my-embeddings"
recipe = "dped"                    # one recipe so far: noise distillation for word embeddings
seed   = 7                         # governs model starts and public shuffles; never privacy noise

[privacy]
epsilon = 8.0                      # the whole run's cost at every party; smaller is more private
delta   = 1e-6                     # well below 1 / number of records
unit    = "record"                 # record | user (all text of a user; needs a user column at every party)
record  = "document"               # document (a row) | sentence | pair (the papers' unit, far weaker)
trust   = "trusted-aggregator"     # the coordinator sees each party's contribution; "secure-sum": noisy sums alone
dropouts = 0                       # parties that may be lost without losing the noise; each makes it a little larger
# noise = "skellam"                # what parties draw their shares from: "gaussian" (the least noise), "skellam",
                                   # "discrete-gaussian"
# noise_multiplier = 0.7           # instead of calibrating the noise from epsilon; refused if it costs more

"""

_RAY = """\
[federation]
launch = "ray"                     # this run starts the parties itself, all on this machine

[federation.shards]                # the one source that they divide among them
source = "documentation"           # built in: this Python's own docstrings. Or a path, a pattern (data/*.jsonl),
                                   # a folder of text files, or a name on a data hub
text   = "text"                    # the column that holds the text
split  = { by = "package", parties = 4 }   # by a column | "hash" (evenly) | "dirichlet" with label and alpha

"""

_CONNECT = """\
[federation]
launch = "connect"                 # parties run at their own sites: `party serve --config party.toml`
# identity = "federation"          # the folder of `coordinator provision`: mutual TLS. Without it, this machine alone
minimum_parties = 2
parties = [
  { name = "north", address = "127.0.0.1:7443" },
  { name = "south", address = "127.0.0.1:7444" },
]
# deadline_seconds = 60            # of silence, after which a party's node is asked whether it serves
# retry_seconds = 300              # how long a party may be away, asked again and again; 0 asks once
# stragglers = { drop_after = 600 }  # gives up who shows no sign of work for so long; else slow ones are waited for

"""

_TAIL = """\
[vocabulary]                       # counted from public text; never from the parties' text
source = "documentation-topics"
size   = 1000

[dped]
signals   = ["moments"]            # word frequencies and second moments along public directions; or "counts", or the
                                   # paper's "votes" and "hidden": `coordinator forecast` says what noise leaves of each
dimension = 100
window    = 5                      # context words on each side

[student]
publish  = "published/my-embeddings"
licence  = "apache-2.0"
language = "en"

[evaluation]                       # public held-out text
source = "documentation-heldout"
"""


def template(launch: str) -> str:
    """The plan for a way of launching, `ray` or `connect`. Raises `PlanError` for any other."""
    parts = {"ray": _RAY, "connect": _CONNECT}
    if launch not in parts:
        raise PlanError(f'--launch {launch} is not a way to start parties. Use "ray" or "connect".')
    return _HEAD + parts[launch] + _TAIL
