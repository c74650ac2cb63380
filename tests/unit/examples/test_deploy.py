"""The examples of deployment parse, and name only commands, options, extras, labels and settings that exist."""

from __future__ import annotations

import configparser
import copy
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.scripts.scripts
import typer
import yaml  # type: ignore[import-untyped]
from ray.autoscaler._private.util import prepare_config, validate_config

from heliograph.cli.app import app
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.labels import METADATA_NAME, Node, broker_selector, read_labels, storage_places

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "examples" / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
HELIO: Any = typer.main.get_command(app)
HELIO.load_all()
PROGRAMS = {"helio": HELIO, "ray": ray.scripts.scripts.cli}
CALL = re.compile(r"(?<![\w./-])(?:/opt/heliograph/bin/)?(helio|ray) ([a-z][a-z-]*(?: [^\n;|&)'\"`]*)?)")
VARIABLE = re.compile(r"\bHELIOGRAPH_[A-Z0-9_]*[A-Z0-9]\b")
LABEL = re.compile(r"heliograph\.io/\w+")
KNOWN_LABELS = {labels.BOOKIE, labels.BROKER, labels.METADATA, labels.RACK, labels.HOST}


def loaded(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def code_of(path: Path) -> str:
    """A file without its comments, its continued lines joined."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    return re.sub(r'"(\$\w+)"', r"\1", text.replace("\\\n", " "))


def calls(path: Path) -> Iterator[tuple[str, list[str]]]:
    for program, rest in CALL.findall(code_of(path)):
        yield program, shlex.split(rest.split(" > ")[0].split(" >/")[0])


def check_call(program: str, arguments: list[str]) -> None:
    """Check that a command exists and has the options that it is given."""
    command: Any = PROGRAMS[program]
    words = list(arguments)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{program} {words[0]}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert given <= known, f"{program} {' '.join(arguments)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_and_their_options_exist(path: Path) -> None:
    for program, arguments in calls(path):
        check_call(program, arguments)


@pytest.mark.parametrize("arguments", [["ascend"], ["up", "--sideways"]])
def test_a_command_that_does_not_exist_is_found(arguments: list[str]) -> None:
    with pytest.raises(AssertionError):
        check_call("helio", arguments)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_settings_and_labels_exist(path: Path) -> None:
    text = path.read_text()
    known = {setting.replace(".", "__").upper() for setting in ClusterConfig.known_settings()} | {"STATE_ROOT"}
    assert {name.removeprefix("HELIOGRAPH_") for name in VARIABLE.findall(text)} <= known
    assert set(LABEL.findall(text)) <= KNOWN_LABELS


def sections(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("name", ["heliograph.service", "heliograph-node.service"])
def test_units_start_programs_that_the_package_installs(name: str) -> None:
    unit = sections(DEPLOY / "systemd" / name)
    assert {"Unit", "Service", "Install"} == set(unit.sections())
    for key in ("ExecStartPre", "ExecStart", "ExecStop"):
        if key in unit["Service"]:
            program = Path(shlex.split(unit["Service"][key])[0])
            assert str(program.parent) == "/opt/heliograph/bin"
            assert program.name in PROJECT["scripts"] or (Path(sys.executable).parent / program.name).exists()
    assert int(unit["Service"]["LimitNOFILE"]) >= 65_536
    assert unit["Service"]["UMask"] == "0077"


def test_the_image_is_built_from_what_exists() -> None:
    text = code_of(DEPLOY / "docker" / "Dockerfile")
    instructions = [line.split(None, 1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert instructions[0][0] == "FROM"
    for word, rest in instructions:
        if word == "COPY":
            assert (ROOT / rest.split()[0]).exists()
        if word in ("HEALTHCHECK", "CMD"):
            program, *arguments = json.loads(rest[rest.index("[") :])
            check_call(program, arguments)
    for extra in re.findall(r"/src\[(\w+)\]|`\.\[(\w+)\]`", (DEPLOY / "docker" / "Dockerfile").read_text()):
        assert "".join(extra) in PROJECT["optional-dependencies"]
    version = re.search(r"^FROM python:(\d+\.\d+)", text)
    assert version
    assert version[1] in PROJECT["requires-python"]


def test_the_script_of_a_container_is_valid_shell() -> None:
    shell = shutil.which("sh")
    assert shell
    subprocess.run([shell, "-n", str(DEPLOY / "docker" / "node.sh")], check=True)


def run_container(tmp_path: Path, program: str, **environment: str) -> tuple[int, list[list[str]]]:
    """Run the script of a container; return its exit code and the commands of helio, which are the lines ``program``.

    The script is told to stop, as by ``docker stop``, when the first command runs.
    """
    (tmp_path / "hostname").write_text("#!/bin/sh\necho 10.0.0.7 fd00::7\n")
    (tmp_path / "helio").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{program}\n')
    for name in ("hostname", "helio"):
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with subprocess.Popen(["sh", str(DEPLOY / "docker" / "node.sh")], env={"PATH": path, **environment}) as script:
        while not (tmp_path / "calls").exists() and script.poll() is None:
            time.sleep(0.01)
        script.terminate()
        code = script.wait(60)
    return code, [shlex.split(line) for line in (tmp_path / "calls").read_text().splitlines()]


LASTING = 'case "$1" in up|join) until [ -e {stop} ]; do sleep 0.1; done;; *) touch {stop};; esac'


def test_a_container_starts_a_cluster_or_joins_one_and_stops_in_good_order(tmp_path: Path) -> None:
    text = "heliograph.io/bookie=bookie-2,heliograph.io/rack=r2"
    program = LASTING.format(stop=tmp_path / "stop")
    code, joined = run_container(tmp_path, program, HEAD="head:6379", LABELS=text)
    assert (code, joined[-1]) == (0, ["down"])
    command = HELIO.commands["join"].make_context("join", list(joined[0][1:]))
    assert (command.params["address"], command.params["watch"]) == ("head:6379", True)
    assert (command.params["host"], read_labels(command.params["label"])) == ("10.0.0.7", pairs(text))
    for name in ("stop", "calls"):
        (tmp_path / name).unlink()
    code, started = run_container(tmp_path, program, LABELS=text)
    assert (code, started[-1]) == (0, ["down"])
    command = HELIO.commands["up"].make_context("up", list(started[0][1:]))
    assert (command.params["ray_labels"], command.params["ray_port"]) == (text, 6379)


def test_a_container_ends_with_its_node(tmp_path: Path) -> None:
    code, called = run_container(tmp_path, "exit 3", LABELS="heliograph.io/bookie=bookie-1")
    assert code in (3, -signal.SIGTERM)  # it had ended when it was told to stop, or not
    assert called[0][0] == "up"


def pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(","))


def check_placement(found: list[dict[str, str]], bookies: int) -> None:
    """Check that every part has a node, and each bookie one of its own in a rack of its own."""
    nodes = [Node(f"10.0.0.{number}", labelled) for number, labelled in enumerate(found, 1)]
    names = [f"bookie-{number}" for number in range(1, bookies + 1)]
    places = storage_places([*names, METADATA_NAME], nodes, {})
    assert [places[name].selector for name in names] == [{labels.BOOKIE: name} for name in names]
    assert places[METADATA_NAME].selector == {labels.METADATA: labels.ANY}
    broker_selector(nodes)
    racks = [node.labels[labels.RACK] for node in nodes if labels.BOOKIE in node.labels]
    assert len(set(racks)) == bookies


def test_the_containers_of_compose_carry_every_part() -> None:
    (compose,) = loaded("docker/compose.yaml")
    services = compose["services"]
    check_placement([pairs(service["environment"]["LABELS"]) for service in services.values()], bookies=3)
    for service in services.values():
        if "healthcheck" in service:
            _, program, *arguments = service["healthcheck"]["test"]
            check_call(program, arguments)
    mounted = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert mounted == set(compose["volumes"])
    assert (DEPLOY / "docker" / services["head"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["head"]["build"]["dockerfile"]).exists()


def test_the_pods_of_kuberay_carry_every_part(tmp_path: Path) -> None:
    documents = loaded("kuberay/raycluster.yaml")
    (settings,) = [document["data"] for document in documents if document["kind"] == "ConfigMap"]
    (tmp_path / "cluster.toml").write_text(settings["cluster.toml"])
    config = ClusterConfig(config_file=tmp_path / "cluster.toml", home=tmp_path)
    (cluster,) = [document["spec"] for document in documents if document["kind"] == "RayCluster"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    check_placement([group["labels"] for group in groups], config.bookies)
    assert cluster["rayVersion"] == ray.__version__
    claims = {document["metadata"]["name"] for document in documents if document["kind"] == "PersistentVolumeClaim"}
    used = [
        volume["persistentVolumeClaim"]["claimName"]
        for group in groups
        for volume in group["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert sorted(used) == sorted(claims)  # each by one pod
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert config.gateway_port == head["readinessProbe"]["tcpSocket"]["port"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= head.keys()


def test_the_nodes_of_ray_up_carry_every_part() -> None:
    (cluster,) = loaded("ray-up/cluster.yaml")
    validate_config(prepare_config(copy.deepcopy(cluster)))
    types = cluster["available_node_types"]
    check_placement([kind["labels"] for kind in types.values()], bookies=3)
    for name, kind in types.items():
        commands = (
            cluster["head_setup_commands"] if name == cluster["head_node_type"] else kind["worker_setup_commands"]
        )
        written = re.search(r"'(\{.*\})'", " ".join(commands))
        assert written
        assert yaml.safe_load(written[1]) == kind["labels"]
