"""What a submitted plan may decide of the coordinator's machine, and what it may not."""

import contextlib
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.errors import PlanError
from coordinator.serving.admitting import LARGEST, admitted, as_toml


def test_a_plan_names_parties_by_name_and_gets_their_ways_from_the_coordinators_file(plan, config, located):
    found = admitted(plan(), config(), located)
    federation = tomllib.loads(found.file)["federation"]
    assert federation["parties"] == [
        {"name": "north", "dials": True},
        {"name": "south", "address": "127.0.0.1:7443"},
    ]
    assert federation["identity"] == str(located.identity)
    assert federation["listen"] == f"unix:{located.sockets}"
    assert (found.name, found.recipe, found.asks) == ("letters", "dped", ("north", "south"))


def test_a_plan_without_parties_that_dial_needs_no_gate(plan, config, located):
    assert "listen" not in tomllib.loads(admitted(plan("south"), config(), located).file)["federation"]


def test_the_same_plan_has_the_same_digest_whatever_a_run_does_not_depend_on(plan, config, located):
    first = admitted(plan(), config(), located)
    same = (
        plan().replace('launch = "connect"', 'launch = "connect"\nretry_seconds = 7') + '\n[student]\npublish = "x"\n'
    )
    assert admitted(same, config(), located).digest == first.digest
    assert admitted(plan(seed=2), config(), located).digest != first.digest
    assert admitted(plan("south"), config(), located).digest != first.digest


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('identity = "/etc/federation"', "identity: the coordinator has its own"),
        ('listen = "0.0.0.0:7444"', "listen: the coordinator has a gate of its own"),
        ('listen = "unix:/tmp/other"', "listen: the coordinator has a gate of its own"),
        ('cluster = { folder = "/root" }', "cluster: the coordinator uses no cluster of yours"),
    ],
)
def test_keys_of_the_federation_that_are_the_coordinators_are_refused(plan, config, located, line, said):
    text = plan().replace('launch = "connect"', f'launch = "connect"\n{line}')
    with pytest.raises(PlanError, match=said):
        admitted(text, config(), located)


def test_no_plan_keeps_a_party_waiting_for_ever(plan, config, located):
    text = plan().replace('launch = "connect"', 'launch = "connect"\nretry_seconds = 1e9\ndeadline_seconds = 20')
    found = admitted(text, config(submit={"patience": 60.0}), located)
    federation = tomllib.loads(found.file)["federation"]
    assert (federation["retry_seconds"], federation["deadline_seconds"]) == (60.0, 20)
    assert found.said == ("[federation] retry_seconds: at most 60 s at this coordinator.",)


@pytest.mark.parametrize("key", ["trust", "identity", "output", "gate", "submit"])
def test_keys_that_no_plan_has_are_refused(plan, config, located, key):
    with pytest.raises(PlanError, match=f"there is no key {key}"):
        admitted(f'{key} = "/etc"\n{plan()}', config(), located)


def test_where_a_student_is_published_is_the_submitters_own(plan, config, located):
    text = plan() + '\n[student]\npublish = "/etc/cron.d"\nlicence = "mit"\n'
    assert tomllib.loads(admitted(text, config(), located).file)["student"] == {"licence": "mit"}


def test_what_the_coordinator_computes_with_is_its_own_and_said(plan, config, located):
    found = admitted(plan().replace("seed = 1", 'seed = 1\ndevice = "cuda:7"\nthreads = 4096'), config(), located)
    assert tomllib.loads(found.file)["run"] == {"name": "letters", "recipe": "dped", "seed": 1}
    assert found.said == ("[run] device, threads: the coordinator computes with what it has.",)


def test_an_unknown_party_is_refused_by_name_and_has_no_address_of_the_submitters(plan, config, located):
    with pytest.raises(PlanError, match=r'"east" is not a party of this coordinator \(north, south\)'):
        admitted(plan("north", "east"), config(), located)
    inside = plan().replace('{ name = "south" }', '{ name = "east", address = "10.0.0.1:22" }')
    with pytest.raises(PlanError, match='"east" is not a party'):
        admitted(inside, config(), located)
    allowed = admitted(inside, config(submit={"addresses": True}), located)
    assert {"name": "east", "address": "10.0.0.1:22"} in tomllib.loads(allowed.file)["federation"]["parties"]


def test_an_address_of_a_known_party_is_the_coordinators(plan, config, located):
    other = plan().replace('{ name = "south" }', '{ name = "south", address = "127.0.0.1:22" }')
    with pytest.raises(PlanError, match="reaches south otherwise than at the plan's address"):
        admitted(other, config(submit={"addresses": True}), located)
    same = plan().replace('{ name = "south" }', '{ name = "south", address = "127.0.0.1:7443" }')
    assert admitted(same, config(), located).digest == admitted(plan(), config(), located).digest


SIMULATED = """
[run]
name = "simulated"
recipe = "dped"

[privacy]
epsilon = 4.0
delta = 1e-6

[federation]
launch = "ray"

[federation.shards]
source = "{source}"
split = {{ parties = 2 }}

[vocabulary]
source = "public.jsonl"
size = 40
"""


def test_simulations_run_where_the_coordinators_file_says_so(config, located):
    (located.public / "shards.jsonl").write_text('{"text": "some more words"}\n')
    text = SIMULATED.format(source="shards.jsonl")
    with pytest.raises(PlanError, match="would start parties on the coordinator's machine"):
        admitted(text, config(), located)
    assert admitted(text, config(submit={"simulations": True}), located).asks == ("(this machine)",)
    with pytest.raises(PlanError, match=r"\[federation.shards\] source"):
        admitted(SIMULATED.format(source="../secret.jsonl"), config(submit={"simulations": True}), located)
    with pytest.raises(PlanError, match="the coordinator uses no cluster of yours"):
        admitted(text + '\n[federation.cluster]\naddress = "auto"\n', config(submit={"simulations": True}), located)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x" * (LARGEST + 1), "larger than 256 KiB"),
        ("[run", "the plan is not TOML"),
        ("x = " + "[" * 200 + "]" * 200, "nested too deep"),
        ("", "recipe|run"),
        ("federation = 3", "federation|run"),
        ("[federation]\nlaunch = 3", "would start parties|launch"),
        ('[federation]\nlaunch = "connect"\nparties = 3', "parties|run"),
        ('[federation]\nlaunch = "connect"\nparties = [3]', "parties|run"),
        ('student = "x"\nrun = 7', "run"),
        ("x = 1979-05-27", "no key|run"),
    ],
)
def test_what_is_no_plan_is_refused_in_words(config, located, text, said):
    with pytest.raises(PlanError, match=said):
        admitted(text, config(), located)


def test_tables_come_back_from_toml_as_they_were():
    tables = {
        "top": 'a "b" \\ \t\n\u007f é 😀',
        "flag": True,
        "table": {"odd key": [1, -2, 1e-06, 1e300, [], {}], "inline": {"x": {"y": "z"}}},
    }
    assert tomllib.loads(as_toml(tables)) == tables


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = ("run", "run recipe", "federation", "federation parties", "federation launch", "federation listen", "student")


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(PLACES), value=VALUES, cut=st.integers(0, 500), other=st.text(max_size=3))
def test_whatever_is_submitted_is_admitted_or_refused_in_words(plan, config, located, where, value, cut, other):
    tables = tomllib.loads(plan())
    *above, key = where.split()
    inner = tables[above[0]] if above else tables
    inner[key] = value
    texts = [f"{plan()[:cut]}{other}{plan()[cut:]}"]
    with contextlib.suppress(PlanError):
        texts.append(as_toml(tables))
    for text in texts:
        with contextlib.suppress(PlanError):
            found = admitted(text, config(), located)
            assert tomllib.loads(found.file)["federation"]["identity"] == str(located.identity)
