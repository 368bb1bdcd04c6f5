"""The files of deploy/ray: what Ray's and KubeRay's schemas say of them, and what docs/ray.md promises of them."""

import copy
import json
import os
import re
import subprocess
import tomllib
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
import yaml
from kubernetes_validate import validate
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "deploy" / "ray"
LAUNCHED = ("on-premises.yaml", "aws.yaml")
WITH_VERSIONS = (*LAUNCHED, "kuberay.yaml", "Dockerfile", "../../docs/ray.md")


def pins(path: Path) -> dict[str, str]:
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {canonicalize_name(name): pinned for name, pinned in (line.split("==") for line in lines)}


DOCUMENT = PROJECT / "docs/ray.md"
PINS = pins(PROJECT / "constraints.txt")
OWN = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]


def cluster(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return loaded


def manifest() -> dict[str, dict[str, Any]]:
    """Kind to document; each kind occurs once."""
    documents = list(yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text()))
    found = {each["kind"]: each for each in documents}
    assert len(found) == len(documents)
    return found


def start_options(command: str) -> dict[str, str]:
    """Options of the one `ray start` of a command, without their dashes; those without a value have none."""
    assert command.count("/ray start ") == 1
    return dict(re.findall(r"--([a-z-]+)=?('[^']*'|\"[^\"]*\"|\S*)", command.partition("/ray start ")[2]))


def starts(name: str) -> dict[str, dict[str, str]]:
    """ "head" and every other kind of machine, and the options that its Ray is started with."""
    if name == "kuberay.yaml":
        spec = manifest()["RayCluster"]["spec"]
        found = {group["groupName"]: group["rayStartParams"] for group in spec["workerGroupSpecs"]}
        return {"head": spec["headGroupSpec"]["rayStartParams"], **found}
    loaded = cluster(name)
    return {kind: start_options(loaded[f"{kind}_start_ray_commands"][-1]) for kind in ("head", "worker")}


Ports = dict[range, tuple[str, str]]


def listed() -> Ports:
    """Ports of the list in docs/ray.md: where, and whom they are open to. Every row has a reason."""
    rows = re.findall(
        r"^\| (\d+)(?:-(\d+))? \| ([^|]+) \| ([^|]+) \| ([^|]*\w[^|]*) \|$",
        DOCUMENT.read_text(),
        flags=re.MULTILINE,
    )
    assert len(rows) == len(re.findall(r"^\| \d", DOCUMENT.read_text(), flags=re.MULTILINE))
    return {range(int(low), int(high or low) + 1): (where, to) for low, high, where, to, _ in rows}


def open_ports(to: str) -> set[int]:
    return {port for ports, (_, open_to) in listed().items() if to in open_to for port in ports}


# Ray's own validation


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_takes_the_file(name):
    prepared = prepare_config(cluster(name))
    validate_config(prepared)
    assert prepared["head_node_type"] in prepared["available_node_types"]


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_refuses_the_file_with_a_wrong_key(name):
    wrong = cluster(name) | {"head_start_commands": []}
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config(wrong))


def test_every_machine_of_the_list_is_kept():
    prepared = prepare_config(cluster("on-premises.yaml"))
    (kind,) = prepared["available_node_types"].values()
    assert kind["min_workers"] == len(prepared["provider"]["worker_ips"]) > 0


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_takes_the_ports(name):
    """Ray refuses a port that is used twice, and knows of one that no option of a worker names."""
    from ray._private.parameter import RayParams

    for options in starts(name).values():
        given = {key.replace("-", "_"): int(value) for key, value in options.items() if value.isdigit()}
        given["gcs_server_port"] = given.pop("port", None)
        given["metrics_agent_port"] = given.pop("dashboard_agent_grpc_port")
        given.setdefault("ray_client_server_port", 10001)
        params = RayParams(**given)
        params.update_pre_selected_port()


# KubeRay's schema: of ray.io/v1 in KubeRay 1.6, and of pods, the fields that the manifest uses, and no others


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Metadata(Strict):
    name: StrictStr = Field(pattern=r"^[a-z]([-a-z0-9]{0,60}[a-z0-9])?$")


class Container(Strict):
    name: StrictStr
    image: StrictStr
    env: list[dict[Literal["name", "value"], StrictStr]]
    securityContext: dict[Literal["allowPrivilegeEscalation", "capabilities"], Any]  # noqa: N815
    resources: dict[Literal["requests", "limits"], dict[Literal["cpu", "memory", "nvidia.com/gpu"], StrictStr]]
    volumeMounts: list[dict[Literal["name", "mountPath", "subPath", "readOnly"], StrictStr | StrictBool]]  # noqa: N815


class Pod(Strict):
    automountServiceAccountToken: StrictBool  # noqa: N815
    securityContext: dict[Literal["runAsNonRoot", "runAsUser", "fsGroup", "seccompProfile"], Any]  # noqa: N815
    containers: list[Container]
    volumes: list[dict[Literal["name", "persistentVolumeClaim", "configMap"], Any]]


class Template(Strict):
    spec: Pod


class AuthOptions(Strict):
    mode: Literal["disabled", "token"]


class HeadGroup(Strict):
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"]  # noqa: N815
    rayStartParams: dict[StrictStr, StrictStr]  # noqa: N815
    resources: dict[StrictStr, StrictStr] = {}
    labels: dict[StrictStr, StrictStr] = {}
    template: Template


class WorkerGroup(Strict):
    groupName: StrictStr  # noqa: N815
    replicas: StrictInt
    minReplicas: StrictInt  # noqa: N815
    maxReplicas: StrictInt  # noqa: N815
    rayStartParams: dict[StrictStr, StrictStr]  # noqa: N815
    resources: dict[StrictStr, StrictStr] = {}
    labels: dict[StrictStr, StrictStr] = {}
    template: Template


class ClusterSpec(Strict):
    rayVersion: StrictStr  # noqa: N815
    authOptions: AuthOptions  # noqa: N815
    enableInTreeAutoscaling: StrictBool  # noqa: N815
    headGroupSpec: HeadGroup  # noqa: N815
    workerGroupSpecs: list[WorkerGroup]  # noqa: N815


class RayCluster(Strict):
    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    kind: Literal["RayCluster"]
    metadata: Metadata
    spec: ClusterSpec


class JobSpec(Strict):
    """With a selector the operator takes a cluster that is there; it then refuses `shutdownAfterJobFinishes`."""

    clusterSelector: dict[StrictStr, StrictStr]  # noqa: N815
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]  # noqa: N815
    entrypoint: StrictStr


class RayJob(Strict):
    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: JobSpec


def pod_templates() -> dict[str, dict[str, Any]]:
    spec = manifest()["RayCluster"]["spec"]
    found = {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"]["template"], **found}


def test_kuberay_takes_the_cluster_and_the_job():
    kinds = manifest()
    RayCluster.model_validate(kinds["RayCluster"])
    RayJob.model_validate(kinds["RayJob"])


def test_a_misspelt_field_is_refused():
    wrong = copy.deepcopy(manifest()["RayCluster"])
    head = wrong["spec"]["headGroupSpec"]
    head["rayStartParameters"] = head["template"]["spec"]["containers"][0]["volumeMount"] = {}
    with pytest.raises(ValidationError, match="2 validation errors") as refused:
        RayCluster.model_validate(wrong)
    assert {each["loc"][-1] for each in refused.value.errors()} == {"rayStartParameters", "volumeMount"}


def test_kubernetes_takes_its_own_kinds():
    kinds = manifest()
    for kind in ("PersistentVolumeClaim", "NetworkPolicy"):
        validate(kinds[kind], "1.30", strict=True)
    for name, template in pod_templates().items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        validate(pod, "1.30", strict=True)
        wrong = copy.deepcopy(pod)
        wrong["spec"]["containers"][0]["volumeMount"] = []
        with pytest.raises(Exception, match="volumeMount"):
            validate(wrong, "1.30", strict=True)


def test_everything_of_the_manifest_belongs_together():
    kinds = manifest()
    name = kinds["RayCluster"]["metadata"]["name"]
    assert kinds["RayJob"]["spec"]["clusterSelector"] == {"ray.io/cluster": name}
    assert kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": name}
    for kind, template in pod_templates().items():
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        (container,) = template["spec"]["containers"]
        assert {each["name"] for each in container["volumeMounts"]} == set(volumes), kind
        assert (
            volumes["shared"]["persistentVolumeClaim"]["claimName"]
            == kinds["PersistentVolumeClaim"]["metadata"]["name"]
        )
        paths = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert paths["/sources"]["readOnly"] is True
        assert "readOnly" not in paths["/runs"]
    words = kinds["RayJob"]["spec"]["entrypoint"].split()
    assert words[:3] == ["coordinator", "run", "/plans/plan.toml"]
    assert words[words.index("--ray-address") + 1] == "auto"
    assert words[words.index("--output") + 1].startswith("/runs/")


def test_pods_have_no_rights_that_they_do_not_need():
    for template in pod_templates().values():
        assert template["spec"]["automountServiceAccountToken"] is False
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        (container,) = template["spec"]["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


# Versions


def test_ray_is_the_pinned_one():
    assert version("ray") == PINS["ray"]
    for name in ("on-premises.yaml", "aws.yaml", "Dockerfile"):
        assert re.findall(r"grep -Fx 'ray, version ([^']+)'", (FOLDER / name).read_text()) == [PINS["ray"]], name
    assert manifest()["RayCluster"]["spec"]["rayVersion"] == PINS["ray"]


@pytest.mark.parametrize("name", WITH_VERSIONS)
def test_our_own_version_is_the_project_s(name):
    text = (FOLDER / name).read_text()
    found = re.findall(r"conclave_distill-([^-]+)-py3", text) + re.findall(r"example/conclave:(\S+)", text)
    assert set(found) == {OWN}


def test_what_ray_default_needs_is_pinned():
    for line in requires("ray") or ():
        requirement = Requirement(line)
        if requirement.marker and requirement.marker.evaluate({"extra": "default"}):
            pinned = PINS[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pinned, prereleases=True), line


@pytest.mark.parametrize("name", ["on-premises.yaml", "aws.yaml", "Dockerfile"])
def test_nothing_is_installed_without_pins(name):
    commands = re.findall(r"pip install((?:[^&\n]|\n)*)", (FOLDER / name).read_text())
    assert len(commands) == 1
    assert len(re.findall(r"-c \S*constraints\.txt", commands[0])) == 1


# The setup command, with a Python that only takes notes

PYTHON = """#!/bin/sh
echo "$0 $@" >> ~/said
if [ "$1 $2" = "-m venv" ]; then mkdir -p venv/bin; cp "$0" venv/bin/python; fi
"""


@pytest.fixture
def machine(tmp_path):
    """A home with what `ray up` brings, and how often its setup has installed something."""
    home, tools = tmp_path / "home", tmp_path / "tools"
    (home / "conclave").mkdir(parents=True)
    tools.mkdir()
    (tools / "python3").write_text(PYTHON)
    (tools / "python3").chmod(0o755)
    for name in (f"conclave_distill-{OWN}-py3-none-any.whl", "constraints.txt"):
        (home / "conclave" / name).write_text(name)

    def setup(name):
        (home / "said").write_text("")
        environment = {"HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", cluster(name)["setup_commands"][0]], env=environment, check=True)
        return (home / "said").read_text().count("pip install")

    return home / "conclave", setup


@pytest.mark.parametrize("name", LAUNCHED)
def test_setup_installs_once_and_again_when_something_is_new(machine, name):
    folder, setup = machine
    assert [setup(name), setup(name)] == [1, 0]
    (folder / "constraints.txt").write_text("newer")
    assert [setup(name), setup(name)] == [1, 0]
    (folder / f"conclave_distill-{OWN}-py3-none-any.whl").write_text("newer")
    assert [setup(name), setup(name)] == [1, 0]


@pytest.mark.parametrize("name", LAUNCHED)
def test_setup_leaves_a_linked_environment_alone(machine, name, tmp_path):
    folder, setup = machine
    (folder / "venv").symlink_to(tmp_path)
    assert setup(name) == 0


# The token, the dashboard, statistics


@pytest.mark.parametrize("name", LAUNCHED)
def test_every_start_asks_for_the_token_and_reports_to_nobody(name):
    loaded = cluster(name)
    for kind in ("head", "worker"):
        stop, start = loaded[f"{kind}_start_ray_commands"]
        assert stop.endswith("/ray stop")
        words = start.partition(" ~/conclave/venv/bin/ray start ")[0].split()
        assert {"RAY_AUTH_MODE=token", "RAY_USAGE_STATS_ENABLED=0", "RAY_TMPDIR=/tmp/conclave-ray"} <= set(words)
    assert loaded["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert any(
        "chmod 700 ~/.ray " in each and "chmod 600 ~/.ray/auth_token" in each for each in loaded["setup_commands"]
    )
    assert "install -d -m 700 /tmp/conclave-ray" in loaded["setup_commands"]


def test_pods_ask_for_the_token():
    assert manifest()["RayCluster"]["spec"]["authOptions"] == {"mode": "token"}
    assert "Secret" not in manifest()
    assert "RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0" in (FOLDER / "Dockerfile").read_text()
    for template in pod_templates().values():
        (container,) = template["spec"]["containers"]
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]


def test_the_image_does_not_run_as_root():
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_dashboard_is_on_loopback(name):
    head = starts(name)["head"]
    assert head["dashboard-host"] == "127.0.0.1"
    assert [to for ports, (_, to) in listed().items() if int(head["dashboard-port"]) in ports] == ["nobody"]


# Ports

AT_HEAD = {"port", "dashboard-port", "ray-client-server-port"}
EVERYWHERE = {
    *("object-manager-port", "node-manager-port", "dashboard-agent-grpc-port", "dashboard-agent-listen-port"),
    *("runtime-env-agent-port", "metrics-export-port", "min-worker-port", "max-worker-port"),
}


@pytest.mark.parametrize("name", [*LAUNCHED, "kuberay.yaml"])
def test_every_port_is_fixed_and_on_the_list(name):
    rows = listed()
    for kind, options in starts(name).items():
        named = {option for option in options if option == "port" or option.endswith("-port")}
        assert named == EVERYWHERE | (AT_HEAD if kind == "head" else set())
        for option in named:
            (row,) = [ports for ports in rows if int(options[option]) in ports]
            if option in ("min-worker-port", "max-worker-port"):
                assert int(options[option]) == (row[0] if option.startswith("min") else row[-1])
            assert rows[row][0] == ("head" if option in AT_HEAD else "every machine")


def test_the_list_knows_the_ports_that_ray_fixes_itself():
    from ray.autoscaler._private.constants import AUTOSCALER_METRIC_PORT
    from ray.dashboard.consts import DASHBOARD_METRIC_PORT

    for port in (AUTOSCALER_METRIC_PORT, DASHBOARD_METRIC_PORT):
        assert [to for ports, (_, to) in listed().items() if port in ports] == ["nobody"]


def test_the_security_group_opens_what_is_on_the_list():
    rules = json.loads((FOLDER / "aws-ingress.json").read_text())
    opened: dict[str, set[int]] = {"GROUP": set(), "ADDRESS": set()}
    for rule in rules:
        assert rule["IpProtocol"] == "tcp"
        sources = [each["GroupId"] for each in rule.get("UserIdGroupPairs", [])]
        sources += [each["CidrIp"] for each in rule.get("IpRanges", [])]
        assert sources
        for source in sources:
            opened[source] |= set(range(rule["FromPort"], rule["ToPort"] + 1))
    assert opened == {"GROUP": open_ports("cluster") | open_ports("head"), "ADDRESS": open_ports("you")}
    for kind in cluster("aws.yaml")["available_node_types"].values():
        assert kind["node_config"]["SecurityGroupIds"], "without one Ray makes a group that opens ssh to the world"


def test_the_network_policy_opens_what_is_on_the_list():
    within, operator = manifest()["NetworkPolicy"]["spec"]["ingress"]
    opened = [
        {port for each in rule["ports"] for port in range(each["port"], each.get("endPort", each["port"]) + 1)}
        for rule in (within, operator)
    ]
    assert opened == [open_ports("cluster"), {8265}]
    assert within["from"] == [{"podSelector": manifest()["NetworkPolicy"]["spec"]["podSelector"]}]
    assert manifest()["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress"]


# Where parties go


def test_the_head_on_premises_uses_the_autoscaler_that_starts_the_others():
    words = cluster("on-premises.yaml")["head_start_ray_commands"][-1].split()
    assert words.index("RAY_enable_autoscaler_v2=0") < words.index("start")


@pytest.mark.parametrize("name", ["aws.yaml", "kuberay.yaml"])
def test_every_machine_for_parties_offers_one_and_is_labelled(name):
    if name == "aws.yaml":
        kinds = cluster(name)["available_node_types"]
    else:
        kinds = {each["groupName"]: each for each in manifest()["RayCluster"]["spec"]["workerGroupSpecs"]}
    for kind in ("party", "party-gpu"):
        assert int(kinds[kind]["resources"]["party"]) == 1
        assert kinds[kind]["labels"] == {"role": kind}


def test_machines_on_premises_offer_one_party_and_are_labelled_by_their_names():
    for options in starts("on-premises.yaml").values():
        assert json.loads(options["resources"].strip("'")) == {"party": 1}
        assert options["labels"] == '"machine=$(hostname -s)"'


def test_gpus_are_asked_for_only_where_parties_use_them():
    asked = {
        kind: template["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        for kind, template in pod_templates().items()
    }
    assert asked == {"head": None, "party": None, "party-gpu": "1"}


def test_the_cloud_s_machines_and_disks_end_with_the_cluster():
    loaded = cluster("aws.yaml")
    assert loaded["provider"]["cache_stopped_nodes"] is False
    assert loaded["max_workers"] == sum(each.get("max_workers", 0) for each in loaded["available_node_types"].values())
    for kind in loaded["available_node_types"].values():
        (disk,) = kind["node_config"]["BlockDeviceMappings"]
        assert disk["Ebs"]["DeleteOnTermination"] is True
        assert disk["Ebs"]["Encrypted"] is True
        assert kind["node_config"]["MetadataOptions"]["HttpTokens"] == "required"
    holders = [
        kind for kind, each in loaded["available_node_types"].items() if "IamInstanceProfile" in each["node_config"]
    ]
    assert holders == ["head"]
