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
  statistics, in whose units it clips single images; without them ``private-whitening`` finds
  clusters that the others miss. With 945, 567 and 378 clients over z it starts from an ARI of .92,
  .75 and .34 (CIFAR-10) and .96, .92 and .85 (Fashion-MNIST; ten classes; two seeds each,
  ``experiments/pina/without_public_data.py``): the same threshold, though it does not fail at once.
* The noise of a training release on the mean of the cohort has the norm z sqrt(C D) / N in units
  of the clipping threshold. ``coded`` pays with real cohorts of 1,000 to 3,000 clients (q = 1, 20
  rounds, a head of 3,850 numbers: .9 to .3 at epsilon 2, a quarter of that at 8), ``slots`` is as
  good and has counters with simulated 10,000 (.01): ``LOUD_NOISE`` = .05.
* With contrasts of half its weight the common part of ``coded`` is 12 % noisier than FedAvg's, with
  .35 it is 6 %. On images set aside (800 clients, 3 seeds) .35 is better by .2 to .4 points at a
  noise of .9 S (epsilon 2), also with clusters of 9:1 and with C = 3 for 2; at .35 S (epsilon 8) it
  is worse by .3 to .5 with even clusters: ``LOUD_CONTRAST`` above ``VERY_LOUD_NOISE``. (.25 was
  another .1 better at epsilon 2, and .8 worse at 8.)

Pure functions of the calibrated noise multipliers, so of epsilon, K, q and the number of releases.
"""

import dataclasses
import math

CLIENTS_A_NOISE = 400.0
LOUD_NOISE = 0.05
VERY_LOUD_NOISE = 0.5
QUIET_CONTRAST, LOUD_CONTRAST = 0.5, 0.35


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen, and the reason as a half-sentence."""

    value: str
    reason: str


def choose_init(
    clients: float, noise_multiplier: float, clusters: int = 2, public: str = "images"
) -> Choice:
    """``spectral`` where too few clients stand against the noise of ``secure-kmeans``.

    With enough of them that one for two clusters, and ``discriminant`` for more or where the public
    images are synthetic; without any ``private-whitening``.

    Parameters
    ----------
    clients : float
        N: the crowd whose noise is added to one release, the simulated cohort or the expected one.
    noise_multiplier : float
        z >= 0 of a release of ``secure-kmeans``, calibrated at ``LARGE_CROWD_SHARE``.
    clusters : int
        C.
    public : {"images", "synthetic", "none"}
        What the public statistics come from.
    """
    crowd = math.inf if noise_multiplier == 0 else clients / noise_multiplier
    good = crowd >= CLIENTS_A_NOISE
    large = "discriminant" if clusters > 2 or public == "synthetic" else "secure-kmeans"
    large = "private-whitening" if public == "none" else large
    return Choice(
        large if good else "spectral",
        f"{clients:,g} clients over noise {noise_multiplier:.3g} = {crowd:.3g}, "
        f"{'at least' if good else 'below'} {CLIENTS_A_NOISE:g}",
    )


def noise_of_release(clients: float, noise_multiplier: float, clusters: int, width: int) -> float:
    """Norm of the noise on the mean of a training release, in units of S; as below."""
    return noise_multiplier * math.sqrt(clusters * width) / clients


def choose_contrast(noise: float) -> float:
    """Weight of the contrasts of ``coded``: less where the noise is so loud that they say little.

    Parameters
    ----------
    noise : float
        ``noise_of_release``.
    """
    return LOUD_CONTRAST if noise > VERY_LOUD_NOISE else QUIET_CONTRAST


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
    noise = noise_of_release(clients, noise_multiplier, clusters, width)
    loud = noise > LOUD_NOISE
    return Choice(
        "coded" if loud else "slots",
        f"noise {noise_multiplier:.3g} on {clusters} x {width:,} numbers over {clients:,g} clients "
        f"= {noise:.3g} S, {'above' if loud else 'at most'} {LOUD_NOISE:g}",
    )
