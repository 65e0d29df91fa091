"""The methods of a comparison, each by what sets it apart; everything else is the same for all.

``pina`` is the configured method. Beside it:

- ``fedavg``: one model. ``fedprox``: one model, local steps with a proximal term (Li et al., MLSys
  2020; Flower's ``proximal-mu``). ``fednova``: one model, updates normalised by the local steps
  (``strategies.fednova``).
- ``oracle``: the true clusters, known in simulations alone.
- ``ifca``: C random models, chosen by loss (``strategies.ifca``). ``ifca-ldp``: every client adds
  the noise itself, which no secure sum needs.
- ``pina-paper``: the printed PINA: sketches, then Eq. 8 and 9. No finite epsilon.
- ``pina-random-init``: the printed PINA without its first stage, from C random models.
- ``control``: what the first stage is worth without any data: a common head, random B.
- ``rr-cluster``: IFCA with a smallest cluster size by random moves (``strategies.rr_cluster``).
- ``feddp-kmeans``: PINA with the initialisation of FedDP-KMeans
  (``strategies.clustering.server_points``).
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Method:
    """What sets a method apart.

    Attributes
    ----------
    clusters : {"one", "all"}
        One model, or C.
    assignment : str
        As ``ClusteredStrategy`` takes it; that of PINA follows from its initialisation.
    init : str or None
        Initialisation of PINA; None for methods without one.
    start : {"zero", "common-head", "random-B", "random"}
        Where the cluster models start: B and head zero; a common random head with B zero, or with
        a B for each cluster; or a head and a B for each.
    rescale, skip : str or None
        As ``Aggregation`` takes them; None: as configured.
    local_noise : bool
        Whether clients add the noise themselves.
    """

    clusters: str = "all"
    assignment: str = "loss"
    init: str | None = None
    start: str = "zero"
    rescale: str | None = None
    skip: str | None = None
    local_noise: bool = False


# A single model has no small cluster to protect from noise: to skip its rounds only loses signal
# (with the noise of a real cohort a third to a half of the rounds, and .7 to 2.2 points).
_ONE = Method(clusters="one", assignment="single", rescale="none", skip="none")
_PRINTED = Method(rescale="normality", skip="none")

METHOD_TABLE = {
    "fedavg": _ONE,
    "fedprox": _ONE,
    "fednova": _ONE,
    "ifca": Method(start="random"),
    # All of its sums look like noise; to skip them would be to give up.
    "ifca-ldp": Method(start="random", skip="none", local_noise=True),
    "pina-random-init": dataclasses.replace(_PRINTED, start="random"),
    "pina-paper": dataclasses.replace(_PRINTED, init="lora-sketch", start="common-head"),
    "control": Method(start="random-B"),
    "rr-cluster": Method(start="random"),
    "feddp-kmeans": Method(init="server-points"),
    "oracle": Method(assignment="oracle"),
}
METHODS = ("pina", *METHOD_TABLE)

_STARTS = {"lora-sketch": "common-head", "random": "random-B"}


def method_of(name: str, init: str) -> Method:
    """The entry of a method; ``init`` is the initialisation that is configured for ``pina``."""
    if name == "pina":
        return Method(init=init, start=_STARTS.get(init, "zero"))
    return METHOD_TABLE[name]
