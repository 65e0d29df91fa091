"""Which initialisation and which release, by the noise that a run has to add.

A simulated cohort of 10,000 hides the cost of the noise; with real cohorts the best method depends
on their size. The constants were measured at epsilon 2 and 8 with two clusters of
CIFAR-10 clients:

* ``secure-kmeans`` at z = 10.58 works from about 2,000 clients in a sum on (2,000 / 10.58 = 189)
  and fails at 1,000 (95). At the share of epsilon that large crowds need (``LARGE_CROWD_SHARE``;
  more would be missing in training) 1,000 clients at epsilon 8 reach 311, and it works, but
  ``spectral``, which makes do with two releases, ends a little better
  (``experiments/pina/real_cohort.csv``); simulated 10,000 at epsilon 2 have 945:
  ``CLIENTS_A_NOISE`` = 400.
* With such a crowd and more than two clusters ``discriminant`` is better (Fashion-MNIST, C = 4: ARI
  .95 to .99 at the end instead of .71 to .97, ``experiments/pina/table1.csv``). It needs public
  statistics, in whose units it clips single images.
* The noise of a training release on the mean of the cohort has the norm z sqrt(C D) / N in units
  of the clipping threshold. ``coded`` pays with real cohorts of 1,000 to 3,000 clients (q = 1, 20
  rounds, a head of 3,850 numbers: .9 to .3 at epsilon 2, a quarter of that at 8), ``slots`` is as
  good and has counters with simulated 10,000 (.01): ``LOUD_NOISE`` = .05.

Pure functions of the calibrated noise multipliers, so of epsilon, K, q and the number of releases.
"""

import dataclasses
import math

CLIENTS_A_NOISE = 400.0
LOUD_NOISE = 0.05


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen, and the reason as a half-sentence."""

    value: str
    reason: str


def choose_init(
    clients: float, noise_multiplier: float, clusters: int = 2, *, public: bool = True
) -> Choice:
    """``spectral`` where too few clients stand against the noise of ``secure-kmeans``.

    With enough of them that one for two clusters, and ``discriminant`` for more.

    Parameters
    ----------
    clients : float
        N: the crowd whose noise is added to one release, the simulated cohort or the expected one.
    noise_multiplier : float
        z >= 0 of a release of ``secure-kmeans``, calibrated at ``LARGE_CROWD_SHARE``.
    clusters : int
        C.
    public : bool
        Whether there are public statistics.
    """
    crowd = math.inf if noise_multiplier == 0 else clients / noise_multiplier
    good = crowd >= CLIENTS_A_NOISE
    large = "discriminant" if clusters > 2 and public else "secure-kmeans"
    return Choice(
        large if good else "spectral",
        f"{clients:,g} clients over noise {noise_multiplier:.3g} = {crowd:.3g}, "
        f"{'at least' if good else 'below'} {CLIENTS_A_NOISE:g}",
    )


def choose_release(clients: float, noise_multiplier: float, clusters: int, width: int) -> Choice:
    """``slots``, or ``coded`` where the noise of independent slots would be loud.

    Parameters
    ----------
    clients : float
        N, as for ``choose_init``, of a training release.
    noise_multiplier : float
        z >= 0 of a training release.
    clusters, width : int
        C, and D numbers in an update. A single cluster has nothing to share.
    """
    if clusters == 1:
        return Choice("slots", "one cluster")
    noise = noise_multiplier * math.sqrt(clusters * width) / clients
    loud = noise > LOUD_NOISE
    return Choice(
        "coded" if loud else "slots",
        f"noise {noise_multiplier:.3g} on {clusters} x {width:,} numbers over {clients:,g} clients "
        f"= {noise:.3g} S, {'above' if loud else 'at most'} {LOUD_NOISE:g}",
    )
