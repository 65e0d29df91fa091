"""Bad input on the command line: one clear message before any run; plans; submission."""

import dataclasses
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import rdp
from safetensors.torch import save_file

from app_kit import run_command
from pina_app import preflight
from pina_app.__main__ import main, resolve
from pina_app.config import PinaConfig, from_run_config
from pina_app.methods import method_plan
from tests.app_kit.files import arrays, as_jpeg, write
from tests.conftest import REPOSITORY

Run = Callable[..., str]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a SuperLink that must not be reached."""

    def reached(*_: object, **__: object) -> str:
        raise AssertionError("a run was submitted")

    monkeypatch.setattr(run_command, "submit", reached)
    place = tmp_path / "empty"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def refused(outside: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that must fail; returns its message."""

    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        captured = capsys.readouterr()
        assert captured.out in ("", "checking settings, data and weights ...\n")
        lines = captured.err.splitlines()
        assert len(lines) == 1, captured.err
        assert lines[0].startswith("error: ")
        assert list(outside.iterdir()) == []  # no run directory, no other trace
        return lines[0].removeprefix("error: ")

    return run


CHEAP = "private=false"  # no noise to calibrate
# The digits' weights would be pretrained: bad settings are found before, or need other weights.
BAD_SETTINGS = [
    ("epsilon=0", "epsilon = 0.0: must be > 0 or 'none'"),
    ("epsilon=-1", "epsilon = -1.0: must be > 0"),
    ("epsilon=nan", "epsilon = nan: must be finite"),
    ("epsilon=inf", "epsilon = inf: must be finite"),
    ("epsilon=two", "epsilon = 'two': must be of type float or 'none'"),
    ("q=0", "q = 0.0: must be in (0, 1]"),
    ("q=1.5", "q = 1.5: must be in (0, 1]"),
    ("clusters=0", "clusters = 0: must be in [1, clients = 50]"),
    ("clusters=51", "clusters = 51: must be in [1, clients = 50]"),
    ("rounds=0", "rounds = 0: must be >= 1"),
    ("rounds=2.5", "rounds = 2.5: must be of type int"),
    ("clip=0", "clip = 0.0: must be > 0"),
    ("private=yes", "private = 'yes': must be of type bool"),
    ("no-such-key=3", "no-such-key = 3: unknown key; known keys: "),
    ("init_rounds=3", "init_rounds = 3: unknown key; known keys: "),
    ("rounds", "'rounds': settings have the form KEY=VALUE"),
    ("preset=mnist", "preset = 'mnist': must be one of "),
    ("dataset=absent.npz public-data=none weights=none", "dataset = 'absent.npz': no such file"),
    ("dataset=nonsense public-data=none weights=none", "dataset = 'nonsense': no such file"),
    ("public-data=absent.npz weights=none", "public-data = 'absent.npz': no such file"),
    ("weights=absent.safetensors", "weights = 'absent.safetensors': no such file"),
    ("clients=2000 weights=none", "clients = 2000: the data set has 1000 images"),
    ("images-per-client=21 weights=none", "images-per-client = 21: 50 clients need 1050"),
    ("model=vit_none weights=none", "model = 'vit_none': timm does not know it"),
    ("model=test_resnet weights=none", "model = 'test_resnet': must be a timm Vision"),
    ("model=test_vit weights=none image-size=8", "model = 'test_vit', image-size = 8: "),
    ("init-noise-multiplier=0.1 q=1", "epsilon = 2.0: the other releases of the plan"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_a_bad_setting_ends_in_one_message(refused: Run, settings: str, message: str) -> None:
    """Exit status 2, nothing submitted, nothing written."""
    others = [] if "epsilon" in message or "private" in message else [CHEAP]
    assert refused("run", *settings.split(), *others).startswith(message)


def test_a_bad_setting_leaves_no_named_run_directory(refused: Run, tmp_path: Path) -> None:
    """Also where ``run-dir`` names one."""
    run_dir = tmp_path / "deep" / "run"
    refused("run", f"run-dir={run_dir}", "weights=none", "clients=2000", CHEAP)
    assert not run_dir.parent.exists()


def test_an_unknown_preset(refused: Run) -> None:
    """For both commands that take one."""
    for command in ("run", "plan"):
        message = refused(command, "--preset", "mnist")
        assert message.startswith("preset = 'mnist': must be one of ")
        assert "cifar10_small" in message


@pytest.mark.parametrize("kind", ["truncated", "shape", "dtype", "labels", "jpeg"])
def test_a_bad_data_file(refused: Run, tmp_path: Path, kind: str) -> None:
    """Truncated, of the wrong shape or dtype, with labels outside the classes."""
    fields = as_jpeg(arrays(100)) if kind == "jpeg" else arrays(100)
    if kind == "shape":
        fields["x_train"] = fields["x_train"][:, 0]
    elif kind == "dtype":
        fields["x_test"] = fields["x_test"].astype(np.float32)
    elif kind == "labels":
        fields["y_test"] = fields["y_test"] + 2
    elif kind == "jpeg":
        fields["jpeg_train"] = fields["jpeg_train"][:-10]
    path = tmp_path / "d.npz"
    write(path, fields)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    message = refused("run", f"dataset={path}", "public-data=none", "weights=none", CHEAP)
    expected = {
        "truncated": "not a readable .npz file, perhaps truncated",
        "shape": "images of shape (100, 8) and dtype uint8; must be (n, H, W)",
        "dtype": "dtype float32; must be (n, H, W) or (n, H, W, 3), uint8",
        "labels": "labels must be 0 to 3",
        "jpeg": "jpeg_train must be bytes (uint8) that offsets_train",
    }
    assert message.startswith(f"dataset = '{path}': ")
    assert expected[kind] in message


def test_bad_public_data(refused: Run, tmp_path: Path) -> None:
    """Checked before the run as the labelled data are."""
    path = write(tmp_path / "p.npz", {"x_test": arrays()["x_test"]})
    message = refused("run", f"public-data={path}", "weights=none", CHEAP)
    assert message.startswith(f"public-data = '{path}': needs x_train")


@pytest.mark.parametrize("kind", ["truncated", "shape", "names"])
def test_bad_weights(refused: Run, tmp_path: Path, kind: str) -> None:
    """One line, although torch writes many."""
    vit = {"norm.weight": torch.zeros(64)}
    if kind == "shape":
        from pina_app.digits_vit import create_vit

        vit = {n: v.clone() for n, v in create_vit().state_dict().items()}
        vit |= {"norm.weight": torch.zeros(3), "norm.bias": torch.zeros(3)}
    path = tmp_path / "w.safetensors"
    save_file(vit, path)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-8])
    message = refused("run", f"weights={path}", CHEAP)
    assert message.startswith(f"weights = '{path}': do not fit digits-vit")


def test_without_a_hub(refused: Run) -> None:
    """The test session is offline (HF_HUB_OFFLINE in conftest.py), so this never waits."""
    hub = ("public-data=none", "weights=none", CHEAP)
    message = refused("run", "dataset=uoft-cs/cifar10", *hub)
    assert message.startswith("dataset = 'uoft-cs/cifar10': could not be had")
    assert "huggingface-cli download" in message
    message = refused("run", "model=vit_tiny_patch16_224", "weights=pretrained", CHEAP)
    assert message.startswith("weights = 'pretrained': vit_tiny_patch16_224 could not be had")
    assert "https://huggingface.co/timm/" in message


def test_a_run_directory_that_cannot_be(
    outside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands in the way."""
    (tmp_path / "file").write_text("in the way")
    assert main(["run", f"run-dir={tmp_path / 'file' / 'run'}", "weights=none", CHEAP]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert str(tmp_path / "file") in line
    assert list(outside.iterdir()) == []


def test_resume_and_predict_need_a_run(refused: Run, tmp_path: Path) -> None:
    """Neither creates the directory."""
    for command in (("resume",), ("predict",)):
        images = [str(tmp_path / "x.npz")] if command == ("predict",) else []
        message = refused(*command, str(tmp_path / "absent"), *images)
        assert message == f"{tmp_path / 'absent'}: not a run directory (it has no config.toml)"
    assert not (tmp_path / "absent").exists()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.toml").write_text("rounds = [")
    refused("resume", str(broken))
    (broken / "config.toml").write_text("rounds = 0\n")
    assert refused("resume", str(broken)).startswith("rounds = 0: must be >= 1")


def test_as_a_process(tmp_path: Path) -> None:
    """``python -m pina_app``: status, one line on stderr, no traceback, no directory."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", "pina_app", "run", "epsilon=0"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: epsilon = 0.0: must be > 0 or 'none'\n"
    assert list(tmp_path.iterdir()) == []


# --- good input ------------------------------------------------------------------------------


class Submission:
    """Stands for Flower."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
        self.calls: list[tuple[Path, int]] = []
        self.status = status
        monkeypatch.setattr(run_command, "submit", self.submit)
        monkeypatch.setattr(run_command, "follow", self.follow)

    def submit(self, run_config: Path, nodes: int) -> str:
        """Keeps what is submitted."""
        self.calls.append((run_config, nodes))
        return "7"

    def follow(self, run_id: str, say: object, resume: str, *, verbose: bool) -> str:
        """The final status at once."""
        assert run_id == "7"
        assert resume.startswith("python -m pina_app resume ")
        return self.status


@pytest.mark.parametrize(
    ("status", "code"), [("finished:completed", 0), ("finished:failed", 1), ("finished:stopped", 1)]
)
def test_a_run_is_submitted_with_its_resolved_configuration(
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: str,
    code: int,
) -> None:
    """Absolute run directory, nodes for all clients, and the run's own final status."""
    flower = Submission(monkeypatch, status)
    assert main(["run", "rounds=3", "weights=none", "clients=30", "run-dir=here", CHEAP]) == code
    ((file, nodes),) = flower.calls
    assert file == outside / "here" / "config.toml"
    assert nodes == 2
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    assert values.pop("app") == "pina"
    expected = PinaConfig(
        rounds=3, weights="none", clients=30, run_dir=str(outside / "here"), private=False
    )
    assert from_run_config(values) == expected
    assert f"{status}; results in {outside / 'here'}" in capsys.readouterr().out
    # A second run there is refused, and the first stays as it is.
    assert main(["run", "rounds=9", "weights=none", "run-dir=here"]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert tomllib.loads(file.read_text(encoding="utf-8"))["rounds"] == 3
    # Going on with it keeps the configuration.
    assert main(["resume", "here"]) == code
    resumed = from_run_config(tomllib.loads(flower.calls[1][0].read_text(encoding="utf-8")))
    assert resumed == dataclasses.replace(expected, resume=True)


def test_run_directories_have_names_of_their_own(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``runs/DATE-TIME-DATASET`` by default."""
    flower = Submission(monkeypatch, "finished:completed")
    assert main(["run", "weights=none", CHEAP]) == 0
    (run_dir,) = (outside / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-digits", run_dir.name)
    assert flower.calls[0][0] == run_dir / "config.toml"


def test_relative_data_files_become_absolute(tmp_path: Path) -> None:
    """Flower's SuperLink lives elsewhere; names that are no files stay."""
    write(tmp_path / "d.npz", arrays())
    config = resolve("none", ["dataset=d.npz", "public-data=none", "weights=none"], tmp_path)
    assert config.dataset == str(tmp_path / "d.npz")
    assert (config.public_data, config.weights) == ("none", "none")
    (tmp_path / "cifar10_jpegbytes.npz").touch()
    config = resolve("cifar10_small", ["rounds=3", "epsilon=2.0"], tmp_path)
    assert config.dataset == str(tmp_path / "cifar10_jpegbytes.npz")
    assert config.public_data == "public_natural_2000.npz"
    assert (config.rounds, config.clients, config.epsilon) == (3, 1000, 2.0)


def test_settings_are_toml_values_or_bare_words() -> None:
    """Quotes are allowed, and a later setting wins."""
    config = resolve(
        "none",
        ["rotations=0,90", 'methods="pina,fedavg"', "private=false", "q=1", "q=0.25", "seed=none"],
        Path(),
    )
    assert (config.rotations, config.methods) == ("0,90", "pina,fedavg")
    assert (config.private, config.q, config.seed) == (False, 0.25, None)


# --- plan ------------------------------------------------------------------------------------

NUMBER = r"([\d.e+-]+)"


def test_plan_numbers(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """z, noise against S, and both epsilons, each by an independent accountant."""
    command = ["plan", "--epsilon", "2", "--clients", "5000", "--q", "0.1", "--rounds", "100"]
    assert main([*command, "--release", "slots"]) == 0
    text = capsys.readouterr().out
    assert list(outside.iterdir()) == []
    stages = re.findall(
        rf"(\w+): (\d+) releases, q = {NUMBER}, z = {NUMBER}; noise on the mean of {NUMBER} "
        rf"clients {NUMBER} a coordinate \(S = {NUMBER}\)",
        text,
    )
    assert [stage[0] for stage in stages] == ["initialisation", "training"]
    (g, q_init, z_init, m_init, std_init, _), (t, q, z, m, std, s) = (
        [float(value) for value in stage[1:]] for stage in stages
    )
    assert (g, q_init, m_init) == (7, 1, 5000)
    assert (t, q, m, s) == (100, 0.1, 500, 1)
    # Printed with 3 or 4 digits.
    # Sensitivities: sqrt(2) of a Lloyd release, S sqrt(1 + kappa^2) of a training release.
    assert std_init == pytest.approx(z_init * 2**0.5 / 5000, rel=5e-3)
    assert std == pytest.approx(z * 1.01**0.5 / 500, rel=5e-3)
    outside_number = re.search(rf"epsilon_outside = {NUMBER}", text)
    server_number = re.search(rf"epsilon_server = {NUMBER}", text)
    delta = re.search(rf"delta = {NUMBER}", text)
    assert outside_number
    assert server_number
    assert delta
    assert float(delta[1]) == pytest.approx(5000**-1.1, rel=5e-3)

    def epsilon(training: dp_accounting.DpEvent | None) -> float:
        accountant = rdp.RdpAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(z_init), 7)
        if training is not None:
            accountant.compose(training, 100)
        return float(accountant.get_epsilon(5000**-1.1))

    release = dp_accounting.GaussianDpEvent(z)
    amplified = dp_accounting.PoissonSampledDpEvent(0.1, release)

    assert float(outside_number[1]) == pytest.approx(2.0, rel=1e-3)
    assert epsilon(amplified) == pytest.approx(2.0, rel=0.01)
    assert float(server_number[1]) == pytest.approx(epsilon(release), rel=0.01)
    # The initialisation's share of epsilon at 5,000 clients is .37.
    assert epsilon(None) == pytest.approx(0.37 * 2, rel=0.01)


def test_plan_says_what_it_chose_and_why(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line; the sensitivity of a coded release is S."""
    assert main(["plan", "--clients", "1000", "--q", "1", "--rounds", "20", "--clip", "2"]) == 0
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if "init = " in line]
    assert "init = spectral (auto: " in line
    assert "release = coded (auto: " in line
    found = re.search(
        rf"training: 20 releases, q = 1, z = {NUMBER}; noise .* {NUMBER} a coord", text
    )
    assert found
    assert float(found[2]) == pytest.approx(float(found[1]) * 2 / 1000, rel=2e-3)
    assert main(["plan", "--init", "secure-kmeans", "--release", "slots"]) == 0
    assert "  init = secure-kmeans; release = slots" in capsys.readouterr().out.splitlines()


def test_plan_for_the_server(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--epsilon-for server`` with a cap calibrates the other number; a preset is a start."""
    arguments = ["--epsilon-for", "server", "--max-participations", "5", "--epsilon", "3"]
    assert main(["plan", "--preset", "cifar10", *arguments]) == 0
    text = capsys.readouterr().out
    methods = from_run_config({"preset": "cifar10"}).method_list
    claimed = [name for name in methods if name != "pina-paper"]  # sketches have no epsilon
    assert text.count("epsilon_server = 3 ") == len(claimed)
    assert "at most 5 participations" in text
    assert [line for line in text.splitlines() if line.endswith(":")] == [f"{m}:" for m in methods]
    config = from_run_config(
        {"preset": "cifar10", "epsilon-for": "server", "max-participations": 5}
    )
    config = dataclasses.replace(config, epsilon=3.0)
    cohorts = re.findall(r"cohort of 10,000 .*; with the real cohort: epsilon = (\S+)", text)
    # The clients of ifca-ldp add all of the noise themselves.
    plans = [method_plan(config, name) for name in claimed if name != "ifca-ldp"]
    assert cohorts == [f"{plan.epsilon_real_cohort:.4g}" for plan in plans]
    assert list(outside.iterdir()) == []


def test_plan_takes_none_as_a_run_does(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real cohort instead of a preset's simulated one; epsilon only reported."""
    arguments = ["--noise-cohort-size", "none", "--epsilon", "none", "--noise-multiplier", "1.5"]
    assert main(["plan", "--preset", "demo", "--init", "random", *arguments]) == 0
    text = capsys.readouterr().out
    assert "z = 1.5; noise on the mean of 25 clients" in text
    assert "simulated cohort" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "epsilon = 0.0: must be > 0"),
        (["--epsilon", "nan"], "epsilon = nan: must be finite"),
        (["--q", "0"], "q = 0.0: must be in (0, 1]"),
        (["--clients", "1"], "clusters = 2: must be in [1, clients = 1]"),
        (["--rounds", "0"], "rounds = 0: must be >= 1"),
        (["--clip", "-1"], "clip = -1.0: must be > 0"),
        (["--noise-cohort-size", "0"], "noise-cohort-size = 0: must be >= 1"),
        (["--clients", "many"], "clients = 'many': must be of type int"),
        (["--epsilon", "none"], "epsilon = 'none': a private run needs epsilon or noise-mul"),
        (
            ["--noise-cohort-size", "10000", "--public-data", "none", "--init-rounds", "2"],
            "init-rounds = 2: init = 'private-whitening' with 2 clusters needs at least 3, or 0 (",
        ),
    ],
)
def test_a_bad_plan(refused: Run, arguments: list[str], message: str) -> None:
    """The same messages as a run's."""
    assert refused("plan", *arguments).startswith(message)


def test_a_private_run_without_epsilon_is_described_as_such() -> None:
    """The sentence on the sketches, and on no privacy."""
    config = PinaConfig(init="lora-sketch", weights="none", q=1.0)
    plan = preflight.check(config)["pina"]
    text = preflight.describe(config, "pina", plan)
    assert "epsilon: none; the sketches of init = 'lora-sketch' are not private" in text
    config = PinaConfig(private=False, weights="none")
    text = preflight.describe(config, "pina", preflight.check(config)["pina"])
    assert text == "pina: no privacy, no noise"


def test_a_failed_submission_leaves_a_users_directory_alone(
    outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command wrote is taken back; what was there stays."""

    def unreachable(*_: object) -> str:
        raise RuntimeError("no SuperLink")

    monkeypatch.setattr(run_command, "submit", unreachable)
    (outside / "mine").mkdir()
    (outside / "mine" / "thesis.txt").write_text("years of work")
    for name in ("mine", "new"):
        assert main(["run", "weights=none", f"run-dir={name}", CHEAP]) == 2
    assert [str(path.relative_to(outside)) for path in sorted(outside.rglob("*"))] == [
        "mine",
        "mine/thesis.txt",
    ]
    assert "no SuperLink" in capsys.readouterr().err


def test_noise_that_the_budget_does_not_cover_is_refused(refused: Run) -> None:
    message = refused("run", "methods=fedavg", "weights=none", "noise-multiplier=0.1")
    assert message.startswith("noise-multiplier = 0.1: the first release of fedavg alone costs")
    assert "epsilon = 'none'" in message
