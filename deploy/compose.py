"""The command lines of ``docker-compose.yml``, as they are run on this machine without Docker.

The compose file is the only place where they are written down. Nothing is replaced but what a
container has for itself: the volumes' paths, the network name of the SuperLink, and ports.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

COMPOSE_FILE = Path(__file__).resolve().parent.parent / "docker-compose.yml"
LOOPBACK = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Service:
    """A container: its command, its environment, its working directory, where its volumes lie.

    ``volumes`` maps a path in the container to a directory of the host, for a named volume to
    one below ``volumes/``; both relative to the directory of the compose file.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    working_dir: str
    volumes: Mapping[str, str]

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(_option(self.command, "--port"))


@dataclasses.dataclass(frozen=True)
class Process:
    """A service as a process of this machine."""

    name: str
    command: list[str]
    environment: dict[str, str]
    working_dir: Path


def read_services(path: Path = COMPOSE_FILE) -> dict[str, Service]:
    """All services of a compose file, by name."""
    services: Mapping[str, Any] = yaml.safe_load(path.read_text("utf-8"))["services"]
    return {name: _service(name, values) for name, values in services.items()}


def _service(name: str, values: Mapping[str, Any]) -> Service:
    volumes = {}
    for volume in values["volumes"]:
        source, target = volume.split(":")[:2]
        volumes[target] = source if source.startswith(".") else f"volumes/{source}"
    environment = {key: str(value) for key, value in values["environment"].items()}
    return Service(name, tuple(values["command"]), environment, values["working_dir"], volumes)


def as_process(service: Service, root: Path, ports: Mapping[str, int]) -> Process:
    """The service on loopback.

    Parameters
    ----------
    service : Service
    root : Path
        Stands for the directory of the compose file.
    ports : mapping
        Free port of every service.
    """

    def local(text: str) -> str:
        for target, source in service.volumes.items():
            text = text.replace(f"{target}/", f"{root / source}/")
            if text == target:
                text = str(root / source)
        return text

    def argument(text: str) -> str:
        option, separator, value = local(text).partition("=")
        if option == "--host":
            value = LOOPBACK
        elif option == "--port":
            value = str(ports[service.name])
        elif option == "--superlink":
            value = f"{LOOPBACK}:{ports[value.partition(':')[0]]}"
        return option + separator + value

    return Process(
        name=service.name,
        command=[argument(text) for text in service.command],
        environment={key: local(value) for key, value in service.environment.items()},
        working_dir=Path(local(service.working_dir)),
    )


def _option(command: tuple[str, ...], name: str) -> str:
    (value,) = (a.partition("=")[2] for a in command if a.startswith(f"{name}="))
    return value
