"""Energy and delay against values worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies.wireless.channel import Channel
from strategies.wireless.links import account, cluster_links, run_account, server_links
from strategies.wireless.problem import Clustering

PLACE = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 50.0], [300.0, 0.0]])
SERVER = np.array([1000.0, 0.0])
PLAN = Clustering(np.array([0, 0, 0, 1]), np.array([0, 3]))


def joules(distance_m: float, band_hz: float = 1e6, power_w: float = 0.01) -> float:
    """Written out with math alone, from the numbers of Section 5."""
    loss_db = 128.1 + 37.6 * math.log10(distance_m / 1000)
    received_w = power_w * 10 ** (-loss_db / 10)
    noise_w = 10 ** (-173 / 10) / 1000 * band_hz
    return power_w * 224_000 / (band_hz * math.log2(1 + received_w / noise_w))


def test_one_kilometre_by_hand() -> None:
    # 10 dBm - 128.1 dB = -118.1 dBm; noise -173 + 60 = -113 dBm; SNR -5.1 dB = 0.3090;
    # rate 1e6 * log2(1.3090) = 388,495 bit/s; 224,000 bits take 0.5766 s and 5.766 mJ.
    channel = Channel()
    distance = np.array([1000.0])
    assert channel.path_loss_db(distance)[0] == pytest.approx(128.1)
    rate = channel.rate_bit_s(distance, bandwidth_hz=1e6, power_w=0.01)[0]
    assert rate == pytest.approx(388_495, rel=1e-4)
    links = server_links(channel, PLACE[:1], SERVER, np.array([0]))
    assert links.delay_s[0] == pytest.approx(0.5766, rel=1e-3)
    assert links.energy_j[0] == pytest.approx(5.766e-3, rel=1e-3)


def test_one_round_by_hand() -> None:
    links = cluster_links(Channel(), PLACE, PLAN)
    assert links.kind == ("uplink", "uplink")
    assert links.sender.tolist() == [1, 2]
    assert links.receiver.tolist() == [0, 0]
    np.testing.assert_allclose(links.energy_j, [joules(100), joules(50)])
    total = account(links)
    assert total.uplink_j == pytest.approx(joules(100) + joules(50))
    assert total.delay_s == pytest.approx(joules(100) / 0.01)
    relay = account(server_links(Channel(), PLACE, SERVER, PLAN.heads))
    assert relay.relay_j == pytest.approx(joules(1000) + joules(700))
    assert relay.uplink_j == relay.downlink_j == 0


def test_shared_band_is_split_over_the_transmitters_of_a_hop() -> None:
    shared = Channel(band="shared")
    inside = account(cluster_links(shared, PLACE, PLAN))
    assert inside.uplink_j == pytest.approx(joules(100, 5e5) + joules(50, 5e5))
    relay = account(server_links(shared, PLACE, SERVER, PLAN.heads))
    assert relay.relay_j == pytest.approx(joules(1000, 5e5) + joules(700, 5e5))


def test_downlink_is_a_broadcast_to_the_farthest_receiver() -> None:
    both = Channel(directions="both", server_power_w=0.02)
    links = cluster_links(both, PLACE, PLAN)
    assert links.kind == ("uplink", "uplink", "downlink")
    assert (links.sender[2], links.receiver[2], links.distance_m[2]) == (0, 1, 100.0)
    assert account(links).downlink_j == pytest.approx(joules(100))
    down = server_links(both, PLACE, SERVER, PLAN.heads)
    assert (down.sender[2], down.receiver[2]) == (-1, 0)
    assert account(down).downlink_j == pytest.approx(joules(1000, power_w=0.02))


def test_run_is_the_sum_of_its_rounds() -> None:
    total = run_account(Channel(), PLACE, SERVER, PLAN, iterations=10, tau1=2, tau2=4)
    assert total.uplink_j == pytest.approx(5 * (joules(100) + joules(50)))
    assert total.relay_j == pytest.approx(2 * (joules(1000) + joules(700)))
    delay = 5 * joules(100) / 0.01 + 2 * joules(1000) / 0.01
    assert total.delay_s == pytest.approx(delay)
    assert total.total_j == pytest.approx(total.uplink_j + total.relay_j)


def test_fedavg_sends_everything_to_the_server() -> None:
    total = run_account(Channel(), PLACE, SERVER, None, iterations=3)
    each = joules(1000) + joules(900) + joules(math.hypot(1000, 50)) + joules(700)
    assert total.uplink_j == pytest.approx(3 * each)
    assert total.relay_j == 0


def test_a_head_alone_sends_nothing_inside_its_cluster() -> None:
    alone = Clustering(np.arange(4), np.arange(4))
    links = cluster_links(Channel(directions="both"), PLACE, alone)
    assert len(links.kind) == 0
    assert account(links).total_j == 0


def test_close_devices_count_as_the_minimum_distance() -> None:
    loss = Channel(minimum_distance_m=2.0).path_loss_db(np.array([0.0, 1.0, 2.0]))
    assert loss[0] == loss[1] == loss[2]


def test_fading_needs_a_generator_and_repeats_with_it() -> None:
    channel = Channel(fading=True)
    with pytest.raises(ValueError, match="generator"):
        cluster_links(channel, PLACE, PLAN)
    one, two = (
        cluster_links(channel, PLACE, PLAN, np.random.default_rng(3)).energy_j for _ in range(2)
    )
    assert (one == two).all()
    assert (one != cluster_links(Channel(), PLACE, PLAN).energy_j).all()


def test_fading_is_exponential_in_power() -> None:
    """At low SNR the rate is proportional to the gain, whose mean is 1."""
    weak = Channel(fading=True, path_loss_1km_db=170.0)
    distance = np.full(20_000, 1000.0)
    rng = np.random.default_rng(0)
    rate = weak.rate_bit_s(distance, bandwidth_hz=1e6, power_w=0.01, rng=rng)
    plain = Channel(path_loss_1km_db=170.0)
    ratio = rate / plain.rate_bit_s(distance, bandwidth_hz=1e6, power_w=0.01)
    assert ratio.mean() == pytest.approx(1.0, abs=0.04)
    assert (ratio > 1).mean() == pytest.approx(math.exp(-1), abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth_hz": 0.0}, "bandwidth_hz = 0.0: must be > 0"),
        ({"transmit_power_w": -1.0}, "transmit_power_w = -1.0"),
        ({"noise_dbm_per_hz": float("nan")}, "noise_dbm_per_hz = nan"),
        ({"model_bits": float("inf")}, "model_bits = inf"),
        ({"band": "open"}, "band = 'open'"),
        ({"directions": "down"}, "directions = 'down'"),
    ],
)
def test_bad_parameters_are_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Channel(**change)


@pytest.mark.parametrize(("tau1", "tau2"), [(0, 2), (2, 3), (2, 0), (3, 1)])
def test_periods_must_fit(tau1: int, tau2: int) -> None:
    with pytest.raises(ValueError, match="tau"):
        run_account(Channel(), PLACE, SERVER, PLAN, tau1=tau1, tau2=tau2)
