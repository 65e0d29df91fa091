"""The command line that both apps share."""

import argparse

import pytest

from app_kit.run_command import add_run_and_resume, parse


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    commands = made.add_subparsers(required=True)
    add_run_and_resume(commands, lambda options: 0, lambda options: 0)
    return made


@pytest.mark.parametrize(
    "line",
    [
        "run --preset demo a=1 b=2 --data X",
        "run a=1 --preset demo --data X b=2",
        "run --data X a=1 --preset demo b=2",
        "run --preset demo --data X a=1 b=2",
    ],
)
def test_settings_may_stand_anywhere_among_the_options(line: str) -> None:
    options = parse(parser(), line.split())
    assert options.settings == ["a=1", "b=2"]
    assert (options.preset, str(options.data)) == ("demo", "X")


@pytest.mark.parametrize("line", ["run a=1 --nonsense", "resume DIR a=1", "run --data X --b=2 a=1"])
def test_what_is_neither_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        parse(parser(), line.split())
    assert error.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err
