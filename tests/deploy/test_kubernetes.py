"""The kustomize bases of deploy/kubernetes: rendered, of the forms that Kubernetes knows, and without rights."""

import copy
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import validate

from party.config import check_config
from party.console.command import main as party_command

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "deploy/kubernetes"
BASES = ("party", "party-listening", "party-account", "coordinator")
VERSIONS = ("1.30", "1.33")
OWN = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
WORKLOADS = ("StatefulSet", "Job")
_spec = importlib.util.spec_from_file_location("docs_blocks", PROJECT / "docs/making/blocks.py")
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)

with_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which renders, is not installed")


def test_the_page_renders_as_these_tests_do():
    """`kubectl kustomize` of a base, by its place in the project."""
    (shown,) = blocks.executed_by("tests/deploy/test_kubernetes.py")
    assert shown.text.strip() in {f"kubectl kustomize {(FOLDER / base).relative_to(PROJECT)}" for base in BASES}


def rendered(base):
    command = ["kubectl", "kustomize", str(FOLDER / base)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


@pytest.fixture(scope="module", params=BASES)
def base(request):
    """A base's name and, by kind, what it renders to; each kind occurs once."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which renders, is not installed")
    return request.param, rendered(request.param)


def pod(kinds):
    (workload,) = [kinds[kind] for kind in WORKLOADS if kind in kinds]
    return workload["spec"]["template"]["spec"]


def containers(kinds):
    spec = pod(kinds)
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_file_is_of_a_form_that_kubernetes_knows(path):
    """Also where nothing renders: what is filled in by rendering, names of images and labels, is no matter of form."""
    for each in yaml.safe_load_all(path.read_text()):
        if each["kind"] != "Kustomization":
            for version in VERSIONS:
                validate(each, version, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_rendered_is_of_a_form_that_kubernetes_knows(base, version):
    _, kinds = base
    for each in kinds.values():
        validate(each, version, strict=True)
    wrong = copy.deepcopy(next(kinds[kind] for kind in WORKLOADS if kind in kinds))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(Exception, match="livenessprobe"):
        validate(wrong, version, strict=True)


def test_everything_of_a_base_belongs_together(base):
    name, kinds = base
    spec = pod(kinds)
    space = kinds["Namespace"]["metadata"]["name"]
    assert {each["metadata"]["namespace"] for kind, each in kinds.items() if kind != "Namespace"} == {space}
    volumes = {each["name"] for each in spec["volumes"]} | {
        each["metadata"]["name"]
        for each in kinds.get("StatefulSet", {}).get("spec", {}).get("volumeClaimTemplates", ())
    }
    mounted = {mount["name"] for each in containers(kinds) for mount in each["volumeMounts"]}
    assert volumes == mounted, name
    (config,) = [each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each]
    assert config == kinds["ConfigMap"]["metadata"]["name"]
    labels = next(kinds[kind] for kind in WORKLOADS if kind in kinds)["spec"]["template"]["metadata"]["labels"]
    for kind, path in (("Service", ("selector",)), ("NetworkPolicy", ("podSelector", "matchLabels"))):
        if kind in kinds:
            wanted = kinds[kind]["spec"]
            for key in path:
                wanted = wanted[key]
            assert wanted
            assert wanted.items() <= labels.items()


def test_the_network_policy_of_a_party_is_not_the_jobs(base):
    """The job's pod has labels of its own, and serves nobody; a policy that let something in would be a party's."""
    name, kinds = base
    assert ("NetworkPolicy" in kinds) == (name != "party-account")


def test_pods_meet_the_restricted_standard_and_write_in_their_volumes_alone(base):
    _, kinds = base
    spec = pod(kinds)
    assert kinds["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert not any("hostPath" in each for each in spec["volumes"])
    for each in containers(kinds):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"].keys() == {"requests", "limits"}
        assert each["image"].endswith(f":{OWN}")


@with_kubectl
@pytest.mark.parametrize("name", ["party", "party-listening", "coordinator"])
def test_one_pod_serves_one_ledger_and_is_looked_after(name):
    kinds = rendered(name)
    assert kinds["StatefulSet"]["spec"]["replicas"] == 1
    claims = [kinds["PersistentVolumeClaim"]] if "PersistentVolumeClaim" in kinds else []
    claims += kinds["StatefulSet"]["spec"].get("volumeClaimTemplates", [])
    assert [each["spec"]["accessModes"] for each in claims] == [["ReadWriteOncePod"]]
    (container,) = pod(kinds)["containers"]
    assert {"startupProbe", "livenessProbe"} <= container.keys()
    assert pod(kinds)["terminationGracePeriodSeconds"] >= 30


@pytest.mark.slow
@with_kubectl
def test_nothing_comes_in_to_a_party_that_dials_and_one_port_to_one_that_listens():
    dials, listens = rendered("party"), rendered("party-listening")
    assert dials["NetworkPolicy"]["spec"]["ingress"] == []
    assert "Service" not in dials
    assert "--connect" in pod(dials)["containers"][0]["args"]
    assert "ports" not in pod(dials)["containers"][0]
    (comes,) = listens["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for each in comes["ports"]] == [7443]
    assert "--connect" not in pod(listens)["containers"][0]["args"]
    goes = [port["port"] for each in listens["NetworkPolicy"]["spec"]["egress"] for port in each["ports"]]
    assert set(goes) == {53}, "one that listens calls nobody"


@with_kubectl
def test_the_file_of_a_party_is_a_party_file_and_its_places_are_mounted():
    kinds = rendered("party")
    config = check_config(tomllib.loads(kinds["ConfigMap"]["data"]["party.toml"]), "party.toml")
    (container,) = pod(kinds)["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    places = [
        config.folder,
        config.shard.source,
        config.identity.certificate,
        config.identity.key,
        config.identity.revoked,
    ]
    for place in places:
        assert any(place.startswith(f"{path}/") for path in mounts), place
    assert not mounts["/var/lib/conclave"].get("readOnly")
    assert config.folder.startswith("/var/lib/conclave/")
    assert f"0.0.0.0:{7443}" == config.listen


@pytest.mark.slow
@with_kubectl
def test_commands_of_the_pods_are_commands(capsys):
    """Their options are known; what they name is not there."""
    for base in ("party", "party-listening", "party-account"):
        for each in pod(rendered(base))["containers"]:
            asked = [
                each["args"],
                *(each[probe]["exec"]["command"][1:] for probe in ("livenessProbe",) if probe in each),
            ]
            for arguments in asked:
                assert party_command(arguments) == 2
                assert "/etc/conclave/party.toml" in capsys.readouterr().err, arguments
