"""The privacy plan of a run: which releases it will make, with how much noise, at what cost.

``epsilon_outside`` bounds what anybody learns who sees only released sums and models; the secret
cohort amplifies it. ``epsilon_server`` bounds what a server learns that picks the cohort: no
amplification, at most ``max_participations`` training rounds a client. A cap on participations
makes rounds depend on each other, which the amplified bound does not cover; with a cap the
unamplified number is therefore claimed for both.

The simulated cohort (after PINA, Section 4) scales the noise down as if ``noise_cohort_size``
clients took part in each release. It is a thought experiment: ``epsilon_real_cohort`` is what the
noise that was really added is worth.
"""

import dataclasses
import math

from strategies.privacy.calibration import Event, calibrate, epsilon_of


@dataclasses.dataclass(frozen=True)
class Stage:
    """Releases of one kind.

    Attributes
    ----------
    noise_multiplier : float
        z: standard deviation of the assumed noise in sensitivities.
    sampling : float
        Probability with which a client takes part in one release.
    releases : int
        How many are planned.
    cohort : float
        Expected number of clients in one release.
    noise_scale : float
        Noise really added over noise assumed: expected cohort over simulated cohort, or 1.
    """

    noise_multiplier: float
    sampling: float
    releases: int
    cohort: float
    noise_scale: float

    @property
    def event(self) -> Event:
        """One release under the assumed cohort."""
        return Event(self.noise_multiplier, self.sampling)

    @property
    def actual_multiplier(self) -> float:
        """Standard deviation of the noise that is really added, in sensitivities."""
        return self.noise_multiplier * self.noise_scale

    def capped(self, cap: int | None) -> list[Event]:
        """The planned releases without amplification, at most ``cap`` of them."""
        count = self.releases if cap is None else min(cap, self.releases)
        return [Event(self.noise_multiplier)] * count


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """Planned composition of a run; ``init`` is None without a private initialisation.

    ``epsilon_outside`` and ``epsilon_server`` are None without privacy, and where no epsilon covers
    what is released.
    """

    private: bool
    delta: float
    budget: float | None
    max_participations: int | None
    noise_cohort_size: int | None
    init: Stage | None
    train: Stage
    epsilon_outside: float | None
    epsilon_server: float | None

    @property
    def epsilon_real_cohort(self) -> float | None:
        """What the noise that is really added is worth to the outside; None without a claim."""
        if self.epsilon_outside is None:
            return None
        init, train = (
            stage and dataclasses.replace(stage, noise_multiplier=stage.actual_multiplier)
            for stage in (self.init, self.train)
        )
        cap = self.max_participations
        return epsilon_of(_events(init, train, cap, amplified=cap is None), self.delta)


def _events(
    init: Stage | None, train: Stage | None, cap: int | None, *, amplified: bool
) -> list[Event]:
    """What stages cost: amplified by sampling, or each release in full and training capped."""
    listed: list[Event] = []
    if init is not None:
        listed += [init.event] * init.releases if amplified else init.capped(None)
    if train is not None:
        listed += [train.event] * train.releases if amplified else train.capped(cap)
    return listed


def default_delta(clients: int) -> float:
    """K^-1.1, after PINA, Section 4; K = 1 gives 1/2."""
    return float(clients**-1.1) if clients > 1 else 0.5


LARGE_CROWD_SHARE = 0.37
"""Share of epsilon that finds clusters if the crowd is large: z = 10.58 for seven releases at 2."""


def default_init_share(cohort: float) -> float:
    """Share of epsilon that the initialisation may spend alone, by the clients in its sum.

    With many clients little is enough (.37 from 5,000 on); with few the clusters are found only
    with most of the budget (.8 up to 1,000). Linear in the logarithm in between.
    """
    position = math.log(max(cohort, 1.0) / 1000) / math.log(5)
    return 0.8 - (0.8 - LARGE_CROWD_SHARE) * min(1.0, max(0.0, position))


def plan_privacy(
    *,
    clients: int,
    sampling: float,
    rounds: int,
    init_releases: int = 0,
    init_sampling: float = 1.0,
    private: bool = True,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    init_noise_multiplier: float | None = None,
    init_share: float | None = None,
    epsilon_for: str = "outside",
    max_participations: int | None = None,
    noise_cohort_size: int | None = None,
    delta: float | None = None,
) -> PrivacyPlan:
    """Calibrate the noise of a whole run to ``epsilon``, or account for a given noise.

    Parameters
    ----------
    clients, sampling, rounds : int, float, int
        K, q, T of training.
    init_releases, init_sampling : int, float
        G secure sums of the initialisation and their sampling probability.
    private : bool
        False plans no noise and claims nothing.
    epsilon : float, optional
        With it alone, both noise multipliers are calibrated over the whole composition; with
        ``noise_multiplier`` it is the budget at which a run stops.
    noise_multiplier, init_noise_multiplier : float, optional
        Given noise; the second defaults to the first.
    init_share : float, optional
        Share of epsilon that the initialisation costs by itself; see ``default_init_share``.
    epsilon_for : {"outside", "server"}
        Whose epsilon is calibrated.
    max_participations : int, optional
        Cap on a client's training rounds.
    noise_cohort_size : int, optional
        Simulated cohort; None adds the noise of the real one.
    delta : float, optional
        Defaults to ``K^-1.1``.

    Raises
    ------
    ValueError
        If a private run has neither epsilon nor noise, or a value is out of range.
    """
    delta = default_delta(clients) if delta is None else delta
    if epsilon_for not in ("outside", "server"):
        raise ValueError(f"epsilon_for = {epsilon_for!r}: must be 'outside' or 'server'")

    def stage(z: float, probability: float, releases: int) -> Stage:
        cohort = probability * clients
        scale = 1.0 if noise_cohort_size is None else cohort / noise_cohort_size
        return Stage(z, probability, releases, cohort, scale)

    def init_stage(z: float) -> Stage | None:
        return stage(z, init_sampling, init_releases) if init_releases else None

    if not private:
        return PrivacyPlan(
            private=False,
            delta=delta,
            budget=None,
            max_participations=max_participations,
            noise_cohort_size=noise_cohort_size,
            init=init_stage(0.0),
            train=stage(0.0, sampling, rounds),
            epsilon_outside=None,
            epsilon_server=None,
        )

    if epsilon_for == "server" and max_participations is None:
        max_participations = rounds  # no cap, and no amplification either
    cap = max_participations
    amplified = cap is None

    if noise_multiplier is not None:
        z_train = noise_multiplier
        z_init = noise_multiplier if init_noise_multiplier is None else init_noise_multiplier
    elif epsilon is not None:
        if init_noise_multiplier is not None or not init_releases:
            z_init = init_noise_multiplier or 0.0
        else:
            cohort = noise_cohort_size or init_sampling * clients
            share = default_init_share(cohort) if init_share is None else init_share
            z_init = calibrate(
                lambda z: _events(init_stage(z), None, cap, amplified=amplified),
                share * epsilon,
                delta,
            )
        z_train = calibrate(
            lambda z: _events(
                init_stage(z_init), stage(z, sampling, rounds), cap, amplified=amplified
            ),
            epsilon,
            delta,
        )
    else:
        raise ValueError("a private run needs epsilon or noise_multiplier")

    init, train = init_stage(z_init), stage(z_train, sampling, rounds)
    return PrivacyPlan(
        private=True,
        delta=delta,
        budget=epsilon,
        max_participations=max_participations,
        noise_cohort_size=noise_cohort_size,
        init=init,
        train=train,
        epsilon_outside=epsilon_of(_events(init, train, cap, amplified=amplified), delta),
        epsilon_server=epsilon_of(_events(init, train, cap, amplified=False), delta),
    )
