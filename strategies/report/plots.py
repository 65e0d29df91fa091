"""Charts over rounds, one line a method: as PNG files, and as SVG to stand inside a page.

Colours have a contrast of at least 3 to white and to near-black; methods also differ by line style
and marker. Everything else in the SVG is drawn in ``currentColor`` on a transparent ground, so one
chart serves a light and a dark page.
"""

import dataclasses
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#2f7fd6", "#c8551b", "#0f8f6a", "#b04fb5", "#8a7a1a", "#7d7d7d")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#010203"  # stands for the page's text colour; no series uses it
WIDTH_IN = 4.6  # a phone's width at 10 point text
LABEL_LENGTH = 48


@dataclasses.dataclass(frozen=True)
class Chart:
    """One quantity over rounds.

    Attributes
    ----------
    key : str
        File name and id prefix.
    title, axis : str
        Heading, and label of the vertical axis.
    digits : str
        Format of a value in text, such as ".1f".
    series : dict
        Method to (round, value) pairs, in order, without gaps and infinities.
    methods : list of str
        All methods of the report; a method looks the same in each of its charts.
    """

    key: str
    title: str
    axis: str
    digits: str
    series: dict[str, list[tuple[int, float]]]
    methods: list[str]

    @property
    def description(self) -> str:
        """What a reader who does not see the chart needs: where each line starts and ends."""
        parts = [
            f"{method}: {points[0][1]:{self.digits}} in round {points[0][0]}, "
            f"{points[-1][1]:{self.digits}} in round {points[-1][0]}"
            for method, points in self.series.items()
        ]
        return "; ".join(parts) + "."

    def table(self) -> list[list[str]]:
        """A row a round: the round, then each method's value or "-"."""
        values = [dict(points) for points in self.series.values()]
        rounds = sorted(set().union(*values))
        return [
            [str(i), *(f"{v[i]:{self.digits}}" if i in v else "-" for v in values)] for i in rounds
        ]


def charts(lines: Iterable[Mapping[str, Any]]) -> list[Chart]:
    """Charts of a run record; a quantity that was never measured has none."""
    lines = list(lines)
    methods = list(dict.fromkeys(line["method"] for line in lines))
    accuracy, ari = _series(lines, "accuracy_mean", 100), _series(lines, "ari")
    epsilon = _series(lines, "epsilon_outside")
    energy = _energy(lines)
    drawn = [
        Chart("accuracy", "Accuracy", "mean accuracy in %", ".1f", accuracy, methods),
        Chart("ari", "Clustering", "adjusted Rand index (ARI)", ".3f", ari, methods),
        Chart("energy", "Radio energy", "energy so far in J", ".3g", energy, methods),
        Chart("epsilon", "Privacy loss to outsiders", "epsilon outside", ".3g", epsilon, methods),
    ]
    return [chart for chart in drawn if chart.series]


def _series(
    lines: Iterable[Mapping[str, Any]], field: str, scale: float = 1.0
) -> dict[str, list[tuple[int, float]]]:
    series: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        value = line.get(field)
        if value is not None and math.isfinite(float(value)):
            series.setdefault(line["method"], []).append((line["round"], scale * float(value)))
    return series


def _energy(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Joules of all training rounds so far."""
    series: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        if line.get("phase") == "train" and line.get("uplink_j") is not None:
            points = series.setdefault(line["method"], [])
            spent = sum(float(line[key]) for key in ("uplink_j", "relay_j", "downlink_j"))
            points.append((line["round"], spent + (points[-1][1] if points else 0.0)))
    return series


def png(chart: Chart) -> bytes:
    """The chart on white."""
    buffer = io.BytesIO()
    figure(chart).savefig(buffer, format="png", dpi=200)
    return buffer.getvalue()


def svg(chart: Chart) -> str:
    """The chart as an ``<svg>`` element that names itself and refers to nothing outside."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.key}):
        figure(chart).savefig(buffer, format="svg", transparent=True)
    return inline(buffer.getvalue(), chart.key, chart.title, chart.description)


def figure(chart: Chart) -> Figure:
    """Draw a chart; method names are printed as they are, never read as formulas."""
    labels = [_short(method) for method in chart.series]
    columns = min(len(labels), max(1, 36 // (max(map(len, labels)) + 4)))
    height = 3.0 + 0.2 * math.ceil(len(labels) / columns)
    drawing = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    axes = drawing.add_subplot()
    handles = []
    for method, points in chart.series.items():
        index = chart.methods.index(method)
        step = max(1, len(points) // 8)
        handles += axes.plot(
            *zip(*points, strict=True),
            color=COLOURS[index % len(COLOURS)],
            linestyle=LINES[index % len(LINES)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            markevery=(index % step, step),
        )
    if chart.key in ("epsilon", "energy"):
        axes.set_ylim(bottom=0)
    axes.set_xlabel("round", color=INK)
    axes.set_ylabel(chart.axis, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.tick_params(colors=INK)
    axes.grid(color=INK, alpha=0.2, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    legend = drawing.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3,
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return drawing


def _short(name: str) -> str:
    return name if len(name) <= LABEL_LENGTH else name[: LABEL_LENGTH - 1] + "…"


def inline(document: str, key: str, title: str, description: str) -> str:
    """Turn matplotlib's document into an element of a page: own ids, no namespace, a name."""
    root = ElementTree.fromstring(document)
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {
            _local(name): _attribute(_local(name), value, f"{key}-")
            for name, value in element.attrib.items()
        }
    names = {"title": title, "desc": description}
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": title,
        "aria-describedby": f"{key}-desc",
    }
    for position, (tag, content) in enumerate(names.items()):
        child = ElementTree.Element(tag, {"id": f"{key}-{tag}"})
        child.text = content
        root.insert(position, child)
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]


def _attribute(key: str, value: str, prefix: str) -> str:
    """An attribute's value with ids prefixed and the ink replaced."""
    if key == "id":
        return prefix + value
    if key == "href":
        return value.replace("#", "#" + prefix, 1)
    return value.replace("url(#", "url(#" + prefix).replace(INK, "currentColor")
