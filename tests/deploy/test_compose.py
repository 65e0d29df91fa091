"""The compose file: what `deploy-check` runs is what it says, and what it says is safe."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compose import COMPOSE_FILE, Service, as_process, read_services
from deploy.federation import LocalFederation, environment
from tests.conftest import REPOSITORY

SERVICES = read_services()
SUPERNODES = [name for name in SERVICES if name != "superlink"]
ROOT = Path("/somewhere/else")
PORTS = {name: 40000 + index for index, name in enumerate(SERVICES)}


def restored(text: str, service: Service) -> str:
    """An argument of a local command with the container's addresses and paths again."""
    for target, source in service.volumes.items():
        text = text.replace(str(ROOT / source), target)
    text = text.replace(f"--superlink=127.0.0.1:{PORTS['superlink']}", "--superlink=superlink:8000")
    if service.name == "superlink":
        text = text.replace("--host=127.0.0.1", "--host=0.0.0.0")
    return text.replace(f"--port={PORTS[service.name]}", f"--port={service.port}")


@pytest.mark.parametrize("name", SERVICES)
def test_local_command_lines_are_those_of_the_compose_file(name: str) -> None:
    """Word by word, once addresses and volumes' paths are put back; environment included."""
    service = SERVICES[name]
    document = yaml.safe_load(COMPOSE_FILE.read_text("utf-8"))["services"][name]
    process = as_process(service, ROOT, PORTS)
    assert [restored(text, service) for text in process.command] == document["command"]
    values = {key: restored(value, service) for key, value in process.environment.items()}
    assert values == document["environment"]
    assert restored(str(process.working_dir), service) == document["working_dir"]
    outside = " ".join([*process.command, *process.environment.values()])
    assert not re.search(r"(?<![\w/.])/(keys|node|state)\b", outside)


def test_a_local_federation_starts_these_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deploy-check has no other command lines: every process that it starts is of the file."""
    started: list[Any] = []

    def popen(command: list[str], **options: Any) -> object:
        started.append((command, options["cwd"], options["env"]))
        return object()

    monkeypatch.setattr("deploy.federation.subprocess.Popen", popen)
    federation = LocalFederation(tmp_path)
    assert federation.supernodes == SUPERNODES
    for name, service in SERVICES.items():
        federation.start(name)
        expected = as_process(service, tmp_path, federation.ports)
        command, folder, values = started.pop()
        assert command == expected.command
        assert folder == expected.working_dir
        assert values == environment(expected.environment)


def test_tls_and_authentication_are_on_everywhere() -> None:
    superlink = SERVICES["superlink"].command
    assert "--enable-supernode-auth" in superlink
    assert {a.partition("=")[0] for a in superlink} >= {"--ssl-certfile", "--ssl-keyfile"}
    for service in SERVICES.values():
        assert "--insecure" not in service.command
    for name in SUPERNODES:
        options = {a.partition("=")[0] for a in SERVICES[name].command}
        assert options >= {"--root-certificates", "--auth-supernode-private-key"}


def test_every_supernode_has_a_client_and_keys_of_its_own() -> None:
    for number, name in enumerate(SUPERNODES):
        service = SERVICES[name]
        assert f'--node-config=client-id={number} data="/node/data.npz"' in service.command
        assert service.volumes["/node"] == f"./federation/{name}"
    assert SERVICES["superlink"].volumes["/keys"] == "./federation/superlink"


def test_containers_are_not_root_and_keys_stay_out_of_the_image() -> None:
    dockerfile = (REPOSITORY / "docker/Dockerfile").read_text("utf-8")
    assert re.search(r"^USER (?!root)", dockerfile, re.MULTILINE)
    allowed = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in allowed
    assert not any("federation" in line for line in allowed)
    for source in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE):
        for path in source.split():
            assert (REPOSITORY / path).exists()
            assert f"!{path.split('/')[0]}" in allowed
    document = yaml.safe_load(COMPOSE_FILE.read_text("utf-8"))["services"]
    assert all(values["healthcheck"]["test"][0] == "CMD" for values in document.values())
