"""A submitter wants files of the coordinator's machine: no name in a plan leads to one that is not public."""

import pytest
from pydantic import BaseModel

from coordinator.errors import PlanError
from coordinator.plan.table import Table
from coordinator.serving import paths
from coordinator.serving.admitting import admitted
from coordinator.serving.paths import check_place
from coordinator.systems.registry import names, system


@pytest.fixture
def public(located):
    folder = located.public
    (folder / "texts").mkdir()
    (folder / "texts/one.txt").write_text("one")
    (folder / "out.jsonl").symlink_to("../secret.jsonl")
    (folder / "away").symlink_to("..")
    (folder / "texts/home").symlink_to("/root")
    (folder / "in.jsonl").symlink_to("public.jsonl")
    (folder / "round").mkdir()
    (folder / "round/again").symlink_to(".")
    (folder / "nowhere").symlink_to("nothing")
    return folder


@pytest.mark.parametrize("name", ["public.jsonl", "*.jsonl", "in.jsonl", "./public.jsonl", "documentation"])
def test_public_files_and_what_is_built_in_may_be_named(public, name):
    if name == "*.jsonl":
        (public / "out.jsonl").unlink()
    check_place("[vocabulary] source", name, public, hub=False)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../secret.jsonl",
        "texts/../../secret.jsonl",
        "~/secret.jsonl",
        "~root/secret.jsonl",
        "/proc/self/environ",
        "../*.jsonl",
        "/etc/*",
        "**/../../secret.jsonl",
    ],
)
def test_a_name_that_leaves_the_folder_is_refused(public, name):
    with pytest.raises(PlanError, match="leaves the coordinator's folder of public files"):
        check_place("[vocabulary] source", name, public, hub=True)


@pytest.mark.parametrize(
    "name",
    ["out.jsonl", "away/secret.jsonl", "away", "*.jsonl", "texts", "texts/*", "aw*/secret.jsonl", "nowhere", "."],
)
def test_a_link_that_leads_out_is_not_followed(public, name):
    with pytest.raises(PlanError, match="leads out of the coordinator's folder"):
        check_place("[vocabulary] source", name, public, hub=True)


def test_links_in_a_circle_come_to_an_end(public, monkeypatch):
    monkeypatch.setattr(paths, "MOST_FILES", 30)
    with pytest.raises(PlanError, match=r"holds more than 30 files|leads out"):
        check_place("[vocabulary] source", "round", public, hub=False)


@pytest.mark.parametrize("name", ["wikitext", "ann/private-model", "submissions.sqlite", "secret", "http://host/x"])
def test_what_is_not_there_is_neither_taken_from_elsewhere_nor_from_the_hub(public, name, monkeypatch):
    monkeypatch.chdir(public.parent)  # where a file of that name may lie
    (public.parent / "secret").write_text("nobody may read this")
    with pytest.raises(PlanError, match="is no file in the coordinator's folder"):
        check_place("[model] name", name, public, hub=False)


def test_a_name_on_the_hub_is_taken_where_the_coordinators_file_says_so(public):
    check_place("[model] name", "ann/model", public, hub=True)


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "x" * 5000])
def test_a_name_that_no_file_has_is_refused_in_words(public, name):
    with pytest.raises(PlanError, match="is no name of a file"):
        check_place("[vocabulary] source", name, public, hub=True)


@pytest.mark.parametrize("line", ['source = "/etc/passwd"', 'source = "../secret.jsonl"', 'source = "out.jsonl"'])
def test_a_plan_with_such_a_name_is_not_admitted(public, plan, config, located, line):
    text = plan().replace('source = "public.jsonl"', line)
    with pytest.raises(PlanError, match=r"\[vocabulary\] source"):
        admitted(text, config(), located)


NO_PLACES = {
    "text", "second", "id", "user", "label", "by", "split", "column", "alike", "launch", "identity", "listen", "recipe",
    "publish", "licence", "language", "address", "name", "ports", "folder", "device", "precision",
    "labels", "values", "party", "resources", "stored", "columns", "template", "classes", "queries", "parties",
    "separator", "streamer", "encoding", "delimiter", "sheet",
}  # fmt: skip
"""Keys that hold a string and name no file, or are refused whole, taken out or decided by the coordinator."""


def strings(model, seen):
    """The keys of a plan's tables that may hold any string and are no places."""
    if model in seen:
        return
    seen.add(model)
    held = set(getattr(model, "PLACES", ())) if issubclass(model, Table) else set()
    for name, field in model.model_fields.items():
        waiting = [field.annotation]
        while waiting:
            kind = waiting.pop()
            if kind is str and name not in held:
                yield f"{model.__name__}.{name}"
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from strings(kind, seen)
            waiting += getattr(kind, "__args__", ())


def test_every_key_of_every_system_that_could_name_a_file_is_known():
    found = {key for name in names() for key in strings(system(name).plan, set())}
    unknown = {key for key in found if key.partition(".")[2] not in NO_PLACES}
    assert unknown == set(), "a key that may name a file belongs to its table's PLACES, any other to NO_PLACES"


def test_the_packaged_model_is_the_one_that_may_be_named():
    source = (paths.Path(__file__).parents[3] / "learning/models/checkpoints.py").read_text()
    assert f'PACKAGED: Final = "{paths.PACKAGED}"' in source
