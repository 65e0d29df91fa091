"""Flower's run config as a frozen dataclass: kebab-case keys, presets, types.

Keys are kebab-case in ``pyproject.toml``, presets and ``-c``; fields are snake_case. A value that
may be absent is written ``"none"``.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

Config = TypeVar("Config")
Scalar = bool | int | float | str


def key_of(field: str) -> str:
    """Run-config key of a field."""
    return field.replace("_", "-")


def to_run_config(config: Any) -> dict[str, Scalar]:
    """Kebab-case keys and values of a configuration as Flower's run config takes them."""
    values = dataclasses.asdict(config)
    return {key_of(field): "none" if v is None else v for field, v in values.items()}


def build(kind: type[Config], presets: Path, values: Mapping[str, Scalar]) -> Config:
    """Build a configuration from run-config keys; the preset fills what was left at its default.

    Raises
    ------
    ValueError
        For an unknown key, a value of the wrong type or out of range, or an unknown preset.
    """
    hints = typing.get_type_hints(kind)
    given = {key: value for key, value in values.items() if key != "app"}
    preset = given.get("preset", "none")
    if preset != "none":
        defaults = to_run_config(kind())
        changed = {key: value for key, value in given.items() if defaults.get(key) != value}
        given = {**read_preset(presets, str(preset)), **changed}
    fields: dict[str, Any] = {}
    for key, value in given.items():
        field = key.replace("-", "_")
        if field not in hints or key != key_of(field):
            known = ", ".join(sorted(key_of(name) for name in hints))
            raise ValueError(f"{key} = {value!r}: unknown key; known keys: {known}")
        fields[field] = _typed(key, value, hints[field])
    return kind(**fields)


def read_preset(presets: Path, name: str) -> dict[str, Scalar]:
    """Values of a preset file; raises ValueError naming the presets there are."""
    path = presets / f"{name}.toml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in presets.glob("*.toml")))
        raise ValueError(f"preset = {name!r}: must be one of {names}, none")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def parse_settings(settings: list[str]) -> dict[str, Scalar]:
    """``KEY=VALUE`` arguments of a command line; a value is TOML, a bare word a string."""
    values: dict[str, Scalar] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise ValueError(f"{setting!r}: settings have the form KEY=VALUE")
        values[key] = _parsed(text)
    return values


def _parsed(text: str) -> Scalar:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _typed(key: str, value: Scalar, hint: Any) -> Scalar | None:
    """The value as the field's type: numbers may stand for wider types, "none" for absence."""
    accepted = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value == "none" and type(None) in accepted:
        return None
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if accepted == (str,) and type(value) in (int, float):
        value = str(value)  # a list of one number, such as rotations=0
    if type(value) not in accepted:
        names = " or ".join("'none'" if a is type(None) else a.__name__ for a in accepted)
        raise ValueError(f"{key} = {value!r}: must be of type {names}")
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise ValueError(f"{key} = {value!r}: must be finite")
    return value
