"""Columns of the table of results; those of privacy or of radio links appear where they apply."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from strategies.traffic import PER_NODE

Row = Mapping[str, Any]


class Column(NamedTuple):
    """Heading in two lines, and a result's cell."""

    heading: tuple[str, str]
    cell: Callable[[Row], str]


def as_text(value: float | str | None, digits: str = ".3g", scale: float = 1.0) -> str:
    """A number as text; "-" for none."""
    return "-" if value is None else f"{scale * float(value):{digits}}"


def _numbers(key: str, digits: str = ".3g", scale: float = 1.0) -> Callable[[Row], str]:
    return lambda row: as_text(row.get(key), digits, scale)


def _per_cluster(row: Row) -> str:
    values = row.get("accuracy_per_cluster") or [None]
    return " / ".join(as_text(value, ".1f", 100) for value in values)


def _traffic(row: Row) -> str:
    values = [row.get(key) for key in PER_NODE]
    if values == [None, None]:
        return "-"
    return " / ".join(as_text(value, ",.1f", 1e-3) for value in values)


FIRST = (
    Column(("", "method"), lambda row: str(row["method"])),
    Column(("accuracy", "mean %"), _numbers("accuracy_mean", ".1f", 100)),
)
PRIVACY = (
    Column(("accuracy per", "cluster %"), _per_cluster),
    Column(("", "ARI"), _numbers("ari", ".3f")),
    Column(("epsilon", "outside"), _numbers("epsilon_outside")),
    Column(("epsilon", "server"), _numbers("epsilon_server")),
    Column(("epsilon of the", "real cohort"), _numbers("epsilon_real_cohort")),
    Column(("", "delta"), _numbers("delta")),
)
RADIO = (
    Column(("", "clusters"), _numbers("clusters", ".0f")),
    Column(("energy", "J"), _numbers("energy_j")),
    Column(("uplink", "J"), _numbers("uplink_j")),
    Column(("relay", "J"), _numbers("relay_j")),
    Column(("downlink", "J"), _numbers("downlink_j")),
    Column(("planning", "J"), _numbers("planning_j")),
    Column(("communication", "s"), _numbers("delay_s")),
    Column(("label", "divergence"), _numbers("label_divergence", ".3f")),
)
LAST = (
    Column(("down / up, kB", "a node and round"), _traffic),
    Column(("", "rounds"), _numbers("rounds", ".0f")),
    Column(("", "seconds"), _numbers("seconds", ".1f")),
)


def columns(summary: Sequence[Row]) -> list[Column]:
    """The columns that a table of these results has."""
    radio = [row for row in summary if "energy_j" in row]
    shown = [*FIRST]
    if len(radio) < len(summary) or not summary:
        shown += PRIVACY
    if radio:
        shown += RADIO
    return [*shown, *LAST]
