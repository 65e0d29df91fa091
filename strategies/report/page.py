"""What a report says, and its page: one HTML file, readable on a phone and in the dark.

The page runs no script and loads nothing.
"""

import dataclasses
import html
from collections.abc import Mapping, Sequence

from strategies.report.columns import Row, as_text, columns
from strategies.report.map import NetworkMap
from strategies.report.plots import Chart, svg
from strategies.traffic import PER_NODE

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --ground: #ffffff; --line: #c9ced6;
  --soft: #f2f4f7; --link: #0b57a4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --ground: #14171b; --line: #434a54; --soft: #20252b; --link: #8ec2ff; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--ground);
  font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3, p, li { overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .5rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: bottom; }
td { white-space: nowrap; }
thead th { background: var(--soft); }
th[scope=row], thead th:first-child { text-align: left; position: sticky; left: 0;
  max-width: 11rem; overflow-wrap: break-word; }
th[scope=row] { background: var(--ground); font-weight: 600; }
.settings td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.settings thead th { text-align: left; }
figure { margin: 0; max-width: 34rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: system-ui, sans-serif !important; }
summary { cursor: pointer; color: var(--link); padding: .6rem 0; }
"""


def sentences(summary: Sequence[Row]) -> list[str]:
    """What the numbers do and do not claim; names the methods where it does not hold for all."""
    if not summary:
        return ["not finished: no round has been recorded yet"]
    holds_for: dict[str, list[str]] = {}
    for row in summary:
        for sentence in dict.fromkeys(_sentences_of(row)):
            holds_for.setdefault(sentence, []).append(row["method"])
    said = [
        sentence if len(methods) == len(summary) else f"{', '.join(methods)}: {sentence}"
        for sentence, methods in holds_for.items()
    ]
    if any(row.get("epsilon_outside") is not None for row in summary):
        said.append(
            "Each epsilon is for one method alone; comparing methods on the same clients, and "
            "tuning on them, is not accounted."
        )
    if any(row.get(key) is not None for row in summary for key in PER_NODE):
        said.append(
            "down / up: the arrays of one request to a node and of its reply, in a training round, "
            "as Flower serialises them; 1 kB is 1,000 bytes."
        )
    return said


def _sentences_of(row: Row) -> list[str]:
    said = []
    if row.get("finished") is False:
        said.append("not finished: the last recorded values")
    cohort, outside = row.get("noise_cohort_size"), row.get("epsilon_outside")
    if cohort is not None and outside is not None:
        said.append(
            f"epsilon = {as_text(outside)} if {float(cohort):,.0f} clients took part in every "
            f"round; with the clients of this run: epsilon = "
            f"{as_text(row.get('epsilon_real_cohort'))}."
        )
    if row.get("seeded"):
        said.append("seeded simulation: no guarantee")
    if row.get("private") is False:
        said.append("no privacy: no noise was added, so there is no epsilon")
    if row.get("public_data"):
        said.append(f"public data: {row['public_data']}")
    return said + [str(note) for note in row.get("notes") or []]


@dataclasses.dataclass(frozen=True)
class Content:
    """What a page says; all of it plain text, escaped here and nowhere else.

    Attributes
    ----------
    title, lead : str
        Heading, and the paragraph that sums the page up.
    summary : sequence
        A result a method, as in summary.json.
    charts : sequence of Chart
    maps : sequence of NetworkMap
        Devices, heads and links of wireless runs.
    settings : mapping
        Run to its settings; one run or several.
    """

    title: str
    lead: str
    summary: Sequence[Row]
    charts: Sequence[Chart]
    maps: Sequence[NetworkMap]
    settings: Mapping[str, Mapping[str, str]]


def page(content: Content) -> str:
    """The complete HTML document."""
    title = html.escape(content.title)
    shown = columns(content.summary)
    headings = [" ".join(filter(None, column.heading)) for column in shown]
    rows = [[column.cell(row) for column in shown] for row in content.summary]
    results = _table("Results, one row a method", headings, rows)
    items = "\n".join(f"<li>{html.escape(said)}</li>" for said in sentences(content.summary))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{html.escape(content.lead)}</p>
<h2>Results</h2>
{results}
<h2>Privacy and notes</h2>
{f"<ul>{items}</ul>" if items else "<p>None.</p>"}
<h2>Charts</h2>
{"".join(map(_figure, content.charts)) or "<p>Nothing has been measured yet.</p>"}
{"".join(map(_map, content.maps))}
<h2>Settings</h2>
{_settings(content.settings)}
</main>
</body>
</html>
"""


def _figure(chart: Chart) -> str:
    """A chart and its numbers."""
    numbers = _table(f"{chart.axis}, by round", ["round", *chart.series], chart.table())
    return f"""<h3>{html.escape(chart.title)}</h3>
<figure>
{svg(chart)}
</figure>
<details>
<summary>The numbers: {html.escape(chart.axis)}</summary>
{numbers}
</details>
"""


def _map(shown: NetworkMap) -> str:
    """A map and the assignment that it shows."""
    devices = _table(f"{shown.title}: devices", shown.headings, shown.rows)
    return f"""<h3>{html.escape(shown.title)}</h3>
<figure>
{shown.svg}
</figure>
<details>
<summary>The devices: cluster, head and distance</summary>
{devices}
</details>
"""


def _settings(settings: Mapping[str, Mapping[str, str]]) -> str:
    """A row a key, a column a run."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    if not keys:
        return "<p>No settings were recorded (no config.toml).</p>"
    rows = [[key, *(values.get(key, "-") for values in settings.values())] for key in keys]
    headings = ["setting", *(settings if len(settings) > 1 else ["value"])]
    return _table("Settings, as resolved at the start", headings, rows, kind="settings")


def _table(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "numbers"
) -> str:
    """A table that scrolls by itself, by touch and by keyboard."""
    caption = html.escape(caption)
    head = "".join(f'<th scope="col">{html.escape(heading)}</th>' for heading in headings)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f"""<div class="scroll" role="region" aria-label="{caption}" tabindex="0">
<table class="{kind}">
<caption>{caption}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""
