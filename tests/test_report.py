"""Reports: the numbers of the record, nothing else, on a page that is safe and loads nothing."""

import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from strategies.report import plots
from strategies.report.__main__ import main
from strategies.report.recorded import ReportError, read_run
from strategies.report.write import table, write_comparison, write_report

HOSTILE = "$\\frac{$ </title></td><script>alert('x')</script> & \"q\""
VOID = {"meta", "br", "hr", "img", "link", "input"}
CONFIG = 'dataset = "digits"\nclients = 50\nprivate = true\nseed = 0\nsimulation = true\n'
CONFIG += 'noise-cohort-size = 10000\npublic-data = "digits"\n'


def line(method: str, number: int, **values: Any) -> dict[str, Any]:
    """A line of the run record; what is not given is null."""
    keys = ("accuracy_mean", "accuracy_per_cluster", "ari", "epsilon_outside")
    empty = dict.fromkeys((*keys, "epsilon_real_cohort"))
    return {"method": method, "round": number, "seconds": 0.5, "skipped": [], **empty, **values}


def result(method: str, **values: Any) -> dict[str, Any]:
    """A row of the summary with numbers that occur nowhere else."""
    row = {
        "method": method,
        "accuracy_mean": 0.6123,
        "accuracy_per_cluster": [0.7234, None],
        "ari": 0.9345,
        "epsilon_outside": 1.97,
        "epsilon_server": None,
        "delta": 0.01354,
        "noise_cohort_size": 10_000,
        "epsilon_real_cohort": 51_000.0,
        "seeded": False,
        "rounds": 47,
        "seconds": 19.34,
        "bytes_down_per_node": 28_349,
        "bytes_up_per_node": 1_357_561,
        "bytes_down": None,
        "bytes_up": None,
        "private": True,
        "public_data": "digits",
        "init": "secure-kmeans",
        "notes": ["The server is trusted: it sees every update."],
    }
    return {**row, **values}


def make_run(
    path: Path, lines: list[dict[str, Any]], summary: list[dict[str, Any]] | None = None
) -> Path:
    """Write a run directory."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(CONFIG)
    (path / "rounds.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def two_methods(path: Path) -> Path:
    """A finished run; pina's first round is one of initialisation."""
    lines = [
        line("pina", 1, epsilon_outside=0.25),
        line("pina", 2, accuracy_mean=0.4321, ari=0.8765, epsilon_outside=1.75),
        line("fedavg", 1, accuracy_mean=0.3456, epsilon_outside=1.25),
    ]
    return make_run(path, lines, [result("pina"), result("fedavg", ari=None)])


class Page(HTMLParser):
    """Collects tables, headings, elements and ids; fails on unbalanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._cells: list[list[str]] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self._cells = []
        elif tag == "tr":
            self._cells.append([])
        elif tag in ("td", "th"):
            self._cells[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[self._caption] = self._cells

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self._cells[-1][-1] += data
        elif self.open and self.open[-1] == "caption":
            self._caption = data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of all elements of a kind."""
        return [attrs for name, attrs in self.elements if name == tag]


def page_of(run_dir: Path) -> Page:
    """Write the report and parse its page."""
    write_report(run_dir)
    return Page((run_dir / "report.html").read_text(encoding="utf-8"))


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line tool."""
    command = [sys.executable, "-m", "strategies.report", *map(str, arguments)]
    root = Path(__file__).parents[1]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)


EXPECTED = "61.2|72.3 / -|0.934|1.97|-|5.1e+04|0.0135|28.3 / 1,357.6|47|19.3"
TRAFFIC = "down / up, kB a node and round"


def test_table_prints_the_values_and_dashes_for_null() -> None:
    printed = table([result("pina"), result("fedavg", accuracy_per_cluster=None, ari=None)])
    rows = {row.split()[0]: row for row in printed.splitlines() if row}
    assert re.split(r"\s{2,}", rows["pina"]) == ["pina", *EXPECTED.split("|")]
    assert re.split(r"\s{2,}", rows["fedavg"])[1:5] == ["61.2", "-", "-", "1.97"]


def test_simulated_cohort_is_reported_as_one() -> None:
    sentence = (
        "epsilon = 2 if 10,000 clients took part in every round; with the clients of this run: "
        "epsilon = 5.1e+04."
    )
    rows = [result("pina", epsilon_outside=2.0), result("fedavg", epsilon_outside=2.0)]
    assert table(rows).splitlines().count(sentence) == 1
    rows[1]["epsilon_real_cohort"] = "inf"
    assert f"pina: {sentence}" in table(rows).splitlines()
    assert "fedavg: " + sentence.replace("5.1e+04", "inf") in table(rows).splitlines()
    real = result("pina", noise_cohort_size=None)
    assert "took part" not in table([real])


def test_seeded_and_unprotected_runs_claim_nothing() -> None:
    plain = table([result("pina")])
    assert "no guarantee" not in plain
    assert "no privacy" not in plain
    assert "comparing methods on the same clients" in plain
    bare = result("fedavg", private=False, epsilon_outside=None, epsilon_real_cohort=None)
    printed = table([result("pina", seeded=True), {**bare, "seeded": True}])
    assert "seeded simulation: no guarantee" in printed.splitlines()
    assert any(row.startswith("fedavg: no privacy: ") for row in printed.splitlines())
    assert printed.count("epsilon = 1.97") == 1


def test_notes_are_printed_once() -> None:
    printed = table([result("pina"), result("fedavg", notes=["A.", "A."]), result("x", notes=[])])
    assert "pina: The server is trusted: it sees every update." in printed.splitlines()
    assert printed.splitlines().count("fedavg: A.") == 1


def test_page_shows_the_numbers_of_the_record(tmp_path: Path) -> None:
    page = page_of(two_methods(tmp_path / "r1"))
    results = page.tables["Results, one row a method"]
    assert results[1] == ["pina", *EXPECTED.split("|")]
    assert results[2][:4] == ["fedavg", "61.2", "72.3 / -", "-"]
    assert page.tables["mean accuracy in %, by round"] == [
        ["round", "pina", "fedavg"],
        ["1", "-", "34.6"],
        ["2", "43.2", "-"],
    ]
    assert page.tables["epsilon outside, by round"][1:] == [
        ["1", "0.25", "1.25"],
        ["2", "1.75", "-"],
    ]
    assert ["clients", "50"] in page.tables["Settings, as resolved at the start"]
    assert ["private", "true"] in page.tables["Settings, as resolved at the start"]


def test_bytes_have_a_column_with_its_unit(tmp_path: Path) -> None:
    """On the page of one run, on that of several with an older run among them, and as text."""
    run, old = two_methods(tmp_path / "r1"), two_methods(tmp_path / "old")
    without = [{k: v for k, v in result(m).items() if "bytes" not in k} for m in ("pina", "fedavg")]
    (old / "summary.json").write_text(json.dumps(without))
    shown = {}
    printed = write_comparison([run, old], tmp_path / "both.html")
    for page in (page_of(run), page_of(old), Page((tmp_path / "both.html").read_text())):
        heading, *rows = page.tables["Results, one row a method"]
        shown |= {row[0]: row[heading.index(TRAFFIC)] for row in rows}
    assert shown == {
        **{"pina": "-", "fedavg": "-", "old/pina": "-", "old/fedavg": "-"},
        **{"r1/pina": "28.3 / 1,357.6", "r1/fedavg": "28.3 / 1,357.6"},
    }
    assert "1 kB is 1,000 bytes" in printed
    assert "1 kB is 1,000 bytes" in (run / "report.html").read_text()
    assert "1 kB" not in (old / "report.html").read_text()


def test_bytes_of_an_unfinished_run_are_those_of_its_training_rounds(tmp_path: Path) -> None:
    sizes = {"bytes_down_per_node": 4_000, "bytes_up_per_node": 5_300}
    lines = [
        line("pina", 1, phase="mean", bytes_down_per_node=0, bytes_up_per_node=99_000),
        line("pina", 2, phase="train", **sizes),
    ]
    heading, row = page_of(make_run(tmp_path / "r1", lines)).tables["Results, one row a method"]
    assert row[heading.index(TRAFFIC)] == "4.0 / 5.3"


def test_page_and_text_say_the_same_sentences(tmp_path: Path) -> None:
    run = two_methods(tmp_path / "r1")
    text = write_report(run).split("\n\n", 1)[1].splitlines()
    items = re.findall(r"<li>(.*)</li>", (run / "report.html").read_text(encoding="utf-8"))
    assert items == text


def test_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    run = two_methods(tmp_path / "r1")
    page = page_of(run)
    text = (run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "image", "iframe", "object", "foreignObject"}
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_page_serves_screen_readers_and_phones(tmp_path: Path) -> None:
    page = page_of(two_methods(tmp_path / "r1"))
    assert page.attributes("html") == [{"lang": "en"}]
    assert any(meta.get("name") == "viewport" for meta in page.attributes("meta"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(cell.get("scope") in ("row", "col") for cell in page.attributes("th"))
    assert len(page.attributes("caption")) == len(page.attributes("table")) == 5
    assert len(page.attributes("details")) == len(page.attributes("svg")) == 3
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for svg in page.attributes("svg"):
        assert svg["role"] == "img"
        assert svg["aria-label"]
        assert svg["aria-describedby"] in ids
        assert "width" not in svg
    references = [a["href"] for a in page.attributes("use")]
    references += [a.get("clip-path") for _, a in page.elements if "clip-path" in a]
    assert references
    assert {re.sub(r"^(url\()?#|\)$", "", str(r)) for r in references} <= set(ids)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", plots.COLOURS)
def test_lines_stand_out_in_light_and_dark(colour: str) -> None:
    light, dark = luminance("#ffffff"), luminance("#14171b")
    assert (light + 0.05) / (luminance(colour) + 0.05) >= 3
    assert (luminance(colour) + 0.05) / (dark + 0.05) >= 3


def test_charts_take_the_page_colour_and_have_no_ground(tmp_path: Path) -> None:
    run = read_run(two_methods(tmp_path / "r1"))
    for chart in plots.charts(run.lines):
        root = ElementTree.fromstring(plots.svg(chart))
        style = " ".join(element.get("style", "") for element in root.iter())
        used = set(re.findall(r"#[0-9a-f]{6}", style)) - set(plots.COLOURS)
        assert used <= {"#ffffff"}
        white = [e for e in root.iter() if "#ffffff" in e.get("style", "")]
        assert all("opacity: 0" in e.get("style", "") for e in white)
        texts = list(root.iter("text"))
        assert texts
        assert all("fill: currentColor" in e.get("style", "") for e in texts)


def test_a_method_looks_the_same_in_every_chart() -> None:
    lines = [line(m, r, accuracy_mean=0.5) for m in "abc" for r in (1, 2)]
    lines += [line("c", 3, ari=0.5), line("c", 4, ari=0.6)]
    accuracy, ari = (plots.figure(c).axes[0].lines for c in plots.charts(lines))
    looks = [(li.get_color(), li.get_linestyle(), li.get_marker()) for li in accuracy]
    assert len({colour for colour, _, _ in looks}) == 3
    assert len({(style, marker) for _, style, marker in looks}) == 3
    assert (ari[0].get_color(), ari[0].get_linestyle(), ari[0].get_marker()) == looks[2]


def test_lines_are_drawn_through_the_recorded_points() -> None:
    lines = [
        line("a", 1),
        line("a", 2, accuracy_mean=0.25, epsilon_outside="inf"),
        line("a", 4, accuracy_mean=0.5, epsilon_outside=2.0),
    ]
    accuracy, epsilon = plots.charts(lines)
    drawn = plots.figure(accuracy).axes[0].lines[0]
    assert np.asarray(drawn.get_data()).tolist() == [[2, 4], [25.0, 50.0]]
    assert epsilon.series == {"a": [(4, 2.0)]}


def test_plots_without_data_are_skipped_and_stale_ones_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r1", [line("a", 1, accuracy_mean=0.5)])
    (run / "ari.png").write_bytes(b"stale")
    write_report(run)
    assert (run / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert not (run / "ari.png").exists()
    assert not (run / "epsilon.png").exists()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    name = HOSTILE + "\x1b[31m\x00"
    lines = [line(name, i, accuracy_mean=0.1 * i) for i in (1, 2)]
    run = make_run(tmp_path / "<b>r&1", lines, [result(name, notes=["<i>note</i>"])])
    (run / "config.toml").write_text("\"<key>\" = '<value>'\n")
    printed = write_report(run)
    assert "\x1b" not in printed
    text = (run / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not {tag for tag, _ in page.elements} & {"script", "b", "i"}
    assert page.tables["Results, one row a method"][1][0] == HOSTILE + " [31m "
    assert ["<key>", "<value>"] in page.tables["Settings, as resolved at the start"]
    assert "Run &lt;b&gt;r&amp;1" in text
    assert "&lt;i&gt;note&lt;/i&gt;" in text


def test_unfinished_run_is_reported_from_its_rounds(tmp_path: Path) -> None:
    lines = [
        line("pina", 1, accuracy_mean=0.25, accuracy_per_cluster=[0.2, 0.3], ari=0.75),
        line("pina", 2, accuracy_mean=0.5, epsilon_outside=1.5, epsilon_real_cohort=1034.5),
        line("pina", 3),
    ]
    run = make_run(tmp_path / "r1", lines)
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"method": "pina", "round": 4, "accur')
    printed = write_report(run)
    row = next(row for row in printed.splitlines() if row.startswith("pina"))
    expected = "pina|50.0|20.0 / 30.0|0.750|1.5|-|1.03e+03|-|-|3|1.5"
    assert re.split(r"\s{2,}", row) == expected.split("|")
    assert any(row.startswith("not finished") for row in printed.splitlines())
    assert "seeded simulation: no guarantee" in printed
    assert "epsilon = 1.5 if 10,000 clients" in printed
    assert "not finished" in (run / "report.html").read_text(encoding="utf-8")
    (run / "summary.json").write_text(json.dumps([result("pina")]))
    assert "not finished" not in write_report(run)
    assert "not finished" not in (run / "report.html").read_text(encoding="utf-8")


def test_run_before_its_first_round(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r1", [])
    (run / "config.toml").unlink()
    page = page_of(run)
    assert "not finished: no round has been recorded yet" in write_report(run)
    assert page.attributes("svg") == []


def test_method_missing_from_the_summary_is_not_finished(tmp_path: Path) -> None:
    run = two_methods(tmp_path / "r1")
    (run / "summary.json").write_text(json.dumps([result("pina")]))
    assert any(row.startswith("fedavg: not finished") for row in write_report(run).splitlines())


def test_command_compares_runs(tmp_path: Path) -> None:
    runs = [two_methods(tmp_path / "r1"), two_methods(tmp_path / "r2")]
    out = tmp_path / "compare.html"
    done = run_command(*runs, "--compare", out)
    assert (done.returncode, done.stderr) == (0, "")
    for run in runs:
        assert (run / "report.html").is_file()
    page = Page(out.read_text(encoding="utf-8"))
    names = ["r1/pina", "r1/fedavg", "r2/pina", "r2/fedavg"]
    assert [row[0] for row in page.tables["Results, one row a method"][1:]] == names
    assert page.tables["mean accuracy in %, by round"][0] == ["round", *names]
    assert page.tables["Settings, as resolved at the start"][0] == ["setting", "r1", "r2"]
    assert "r2/fedavg" in done.stdout


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [two_methods(tmp_path / "a" / "r"), two_methods(tmp_path / "b" / "r")]
    printed = write_comparison(runs, tmp_path / "c.html")
    assert f"{runs[0]}/pina" in printed
    assert f"{runs[1]}/pina" in printed


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rounds.jsonl", '{"method": "a", "round": 1}\n{"meth\n{}\n', "not JSON at '{\"meth'"),
        ("rounds.jsonl", '{"method": "a"}\n', "entry 1: without a whole round"),
        ("rounds.jsonl", "[1]\n", "entry 1: not an object with a method"),
        ("rounds.jsonl", '{"method": "a", "round": 1, "ari": "x"}\n', "'x' is not a number"),
        ("rounds.jsonl", '{"method": "a", "round": 1, "ari": [1]}\n', "[1] is not a number"),
        ("summary.json", '[{"method":', "remove it to report from rounds.jsonl alone"),
        ("rounds.jsonl", '{"method": "a", "round": 1, "bytes_up": "9"}\n', "whole numbers or null"),
        ("summary.json", '[{"method": "a", "bytes_down_per_node": 0.5}]', "whole numbers or null"),
        ("summary.json", "{}", "not a list of results"),
        ("summary.json", '[{"method": "a", "notes": "x"}]', "must be lists"),
        ("config.toml", "= 1", "not TOML"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    run = two_methods(tmp_path / "r1")
    (run / name).write_text(content)
    with pytest.raises(ReportError) as caught:
        write_report(run)
    assert str(caught.value).startswith(f"{run / name}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_undecodable_file_is_named(tmp_path: Path) -> None:
    run = two_methods(tmp_path / "r1")
    (run / "rounds.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ReportError, match="not UTF-8 text; remove the damaged line"):
        write_report(run)


def test_command_refuses_bad_input_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, damaged = tmp_path / "empty", two_methods(tmp_path / "damaged")
    empty.mkdir()
    (damaged / "rounds.jsonl").write_text("{\n")
    says = {
        tmp_path / "absent": "no such directory; give a run's directory",
        empty: "has no rounds.jsonl; give the directory of a started run",
        damaged: "remove the damaged line",
    }
    for path, message in says.items():
        assert main([str(path)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"error: {path}")
        assert message in printed.err
        assert printed.err.count("\n") == 1
    done = run_command(damaged)  # the last of them, as a user would see it
    assert (done.returncode, done.stdout, done.stderr) == (2, "", printed.err)


def test_command_names_a_place_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "absent" / "c.html"
    assert main([str(two_methods(tmp_path / "r1")), "--compare", str(out)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert str(out) in printed
    assert "choose another place" in printed


def test_report_does_not_import_torch() -> None:
    code = "import sys, strategies.report.write; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
