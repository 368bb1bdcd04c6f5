"""The plan that benchmarks train a packaged MiniLM with: four parties together, under federated DP-SGD."""

PARTIES = 4
PLAN = """
[run]
name = "federated"
recipe = "dp_sgd"
seed = 7
[privacy]
epsilon = {epsilon}
delta = 1e-5
declared_size = {declared_size}
{privacy}
[federation]
launch = "ray"
[federation.shards]
source = "{source}"
text = "text"
label = "label"
split = {{ by = "hash", parties = {parties} }}
[text]
kind = "single"
labels = ["negative", "positive"]
values = ["0", "1"]
longest = 64
[model]
name = "all-MiniLM-L6-v2"
adapt = "{adapt}"
rank = 8
[dp_sgd]
form = "federated"
steps = {steps}
batch = {batch}
clip = 1.0
learning_rate = {learning_rate}
{evaluation}
[student]
publish = "published"
"""
EVALUATION = """[evaluation]
source = "{source}"
text = "text"
label = "label"
"""


def federated_plan(source: str, *, privacy: str = "", evaluation: str | None = None, **settings: object) -> str:
    """A plan's text.

    source: labelled rows that the parties share out. privacy: further lines of `[privacy]`. evaluation: public labelled
    rows, if any. settings: epsilon, declared_size, adapt, steps, batch, learning_rate; KeyError without one of them.
    """
    public = "" if evaluation is None else EVALUATION.format(source=evaluation)
    return PLAN.format(source=source, parties=PARTIES, privacy=privacy, evaluation=public, **settings)
