"""Each policy's scores, computed by hand."""

from collections import Counter
from collections.abc import Sequence
from math import exp
from random import Random
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.fleet.load import Lease, WorkerLoad
from gateway.routing.choose import pick
from gateway.routing.policies.additive import Additive
from gateway.routing.policies.consistent_hash import ConsistentHash
from gateway.routing.policies.counting import LeastRequests, PowerOfTwo, RoundRobin
from gateway.routing.policies.estimated_ttft import EstimatedTTFT
from gateway.routing.policies.explore import Explore
from gateway.routing.policies.prefix_gate import PrefixGate
from gateway.routing.policies.product import Product
from gateway.routing.policies.recent_prefill import RecentPrefill
from gateway.routing.policies.session_affinity import SessionAffinity
from gateway.routing.policies.tree_threshold import TreeThreshold
from gateway.routing.policy import RequestShape
from gateway.routing.registry import DEFAULT_POLICY, POLICIES, make_policy
from gateway.types import BlockKey, WorkerId


def loads(*figures: dict[str, Any]) -> list[WorkerLoad]:
    return [WorkerLoad(WorkerId(f"http://w{i}:1"), **given) for i, given in enumerate(figures)]


def requests(*counts: int) -> list[WorkerLoad]:
    return loads(*({"requests": count} for count in counts))


SHAPE = RequestShape(prompt_tokens=1000)


def test_estimated_ttft() -> None:
    policy = EstimatedTTFT()
    fleet = loads({"waiting_tokens": 100, "requests": 2}, {}, {"prefill_rate": 2.0})
    # affinity 6 · 800/1000 · 2/3 without a queue = 3.2: 100 + 5.2·(1000−800) + 16·2; 5.2·1000; twice as fast
    assert policy.score(SHAPE, fleet, [800, 0, 0]) == pytest.approx([1172.0, 5200.0, 2600.0])
    # a stranger has none
    assert policy.score(SHAPE, fleet, [0, 0, 0]) == [2132.0, 2000.0, 1000.0]


@pytest.mark.parametrize(("weight", "waits"), [(1.5, 1), (2.0, 2), (4.0, 6)])
def test_a_weight_is_a_speed_and_no_share_of_the_requests(weight: float, waits: int) -> None:
    """An idle worker of weight 1 gets its first prompt when 2 × (weight - 1) like it wait at the other."""
    policy = EstimatedTTFT(affinity_weight=0.0, balance_weight=0.0, request_tokens=0.0)
    for ahead in range(12):
        fleet = loads({"prefill_rate": weight, "waiting_tokens": 1000 * ahead, "requests": ahead}, {})
        fast, slow = policy.score(SHAPE, fleet, [0, 0])
        assert (fast, slow) == ((1000 * ahead + 2000) / weight, 2000.0)
        assert (fast < slow) is (ahead < waits)


def test_affinity_grows_with_the_share_held_and_the_slack_of_the_fleet() -> None:
    policy = EstimatedTTFT()
    idle, queue = {"capacity_tokens": 10_000}, {"capacity_tokens": 10_000, "peer_waiting_tokens": 1}
    half_used = {"capacity_tokens": 10_000, "context_tokens": 3000, "peer_context_tokens": 2000}
    assert policy.affinity(SHAPE, loads(idle, idle), [1000, 0]) == 6.0
    assert policy.affinity(SHAPE, loads(idle, idle), [500, 0]) == 3.0
    assert policy.affinity(SHAPE, loads(queue, idle), [1000, 0]) == 3.0
    assert policy.affinity(SHAPE, loads(half_used, half_used), [1000, 0]) == 3.0
    assert policy.affinity(SHAPE, loads(queue, half_used), [0, 500]) == pytest.approx(6 * 0.5 * 0.5 * 0.75)
    assert policy.affinity(SHAPE, loads(queue, queue), [1000, 0]) == 0.0
    assert policy.affinity(SHAPE, loads(half_used | {"context_tokens": 30_000}), [1000]) == 0.0
    # nobody knows how much the second one holds: the first one's share counts
    assert policy.affinity(SHAPE, loads(half_used, {"context_tokens": 9000}), [1000, 0]) == 3.0
    assert EstimatedTTFT(affinity_weight=0.0).affinity(SHAPE, loads(idle), [1000]) == 0.0


def test_what_others_in_flight_have_in_common_with_it_gives_no_affinity() -> None:
    holder, other = fleet = loads({}, {})
    keys = [BlockKey(i) for i in range(62)]
    shape = RequestShape(prompt_tokens=1000, keys=keys)
    # 512 tokens of it are in use by another
    Lease.take(holder, prompt_tokens=600, matched_tokens=600, keys=keys[:37])
    assert EstimatedTTFT().affinity(shape, fleet, [992, 0]) == pytest.approx(6 * 0.48)
    Lease.take(holder, prompt_tokens=1000, matched_tokens=1000, keys=keys)
    assert EstimatedTTFT().affinity(shape, fleet, [768, 0]) == 0.0
    assert other.requests == 0


def test_affinity_counts_a_bounded_part_of_a_prompt() -> None:
    policy = EstimatedTTFT(affinity_tokens=100.0)
    # 2·10 + 5.94·10 at the holder; 2·1000 + 5.94·100
    shape = RequestShape(prompt_tokens=1000, block_size=1)
    assert policy.score(shape, loads({}, {}), [990, 0]) == pytest.approx([79.4, 2594.0])


def test_a_long_wait_before_ones_past_counts_several_times_while_others_are_idle() -> None:
    policy = EstimatedTTFT(affinity_weight=0.0)
    fleet = loads({"waiting_tokens": 80_000, "peer_waiting_tokens": 9000}, {}, {}, {"waiting_tokens": 84_000})
    # two of four are without a queue: 89,000 + 4·5,000/2 + 2·16, nothing for just 84,000
    assert policy.score(SHAPE, fleet, [1000, 0, 0, 0]) == [99_032.0, 2000.0, 2000.0, 86_000.0]
    # a stranger has no past there to wait for
    assert policy.score(SHAPE, fleet, [800, 0, 0, 0])[0] == 89_400.0
    busy = loads({"waiting_tokens": 89_000}, {"waiting_tokens": 1})
    assert policy.score(SHAPE, busy, [1000, 0]) == [89_032.0, 2001.0]
    patient = EstimatedTTFT(affinity_weight=0.0, long_wait_weight=0.0)
    assert patient.score(SHAPE, fleet, [1000, 0, 0, 0])[0] == 89_032.0


def test_a_long_wait_counts_less_where_a_second_copy_finds_no_room() -> None:
    policy = EstimatedTTFT(affinity_weight=0.0)
    half = {"capacity_tokens": 200_000, "context_tokens": 100_000}
    fleet = loads({"waiting_tokens": 89_000, **half}, half)
    # one of two idle, half of the caches free: 4 · ½ · ½ · ½ of 5,000
    assert policy.score(SHAPE, fleet, [1000, 0])[0] == 89_032.0 + 2500.0


def test_who_would_wait_for_a_very_long_prompt_computes_its_past_anew() -> None:
    # 46,000 tokens, all but a block of which lie behind a prompt of 118,000; 0.99 of affinity 6 at slack 7/8
    fleet = loads({"waiting_tokens": 118_000, "requests": 1}, *[{}] * 7)
    shape, matched = RequestShape(prompt_tokens=46_000), [45_984, *[0] * 7]
    scores = EstimatedTTFT().score(shape, fleet, matched)
    assert pick(scores, fleet, matched, Random(1)) != 0
    patient = EstimatedTTFT(long_wait_weight=0.0).score(shape, fleet, matched)
    assert pick(patient, fleet, matched, Random(1)) == 0


def test_estimated_ttft_counts_what_peers_sent() -> None:
    fleet = loads({"peer_waiting_tokens": 300, "peer_requests": 3}, {"waiting_tokens": 300, "requests": 3})
    assert EstimatedTTFT().score(SHAPE, fleet, [0, 0]) == [2348.0, 2348.0]


def test_what_decodes_there_counts_a_little() -> None:
    fleet = loads({"decoding_tokens": 1000, "peer_decoding_tokens": 200}, {})
    assert EstimatedTTFT().score(SHAPE, fleet, [0, 0]) == [2060.0, 2000.0]
    assert EstimatedTTFT(decode_weight=0.0).score(SHAPE, fleet, [0, 0]) == [2000.0, 2000.0]


def test_a_full_match_is_never_free() -> None:
    fleet = loads({"requests": 40}, {})
    # one block of 16 twice, and forty requests that decode: 32 + 640; a stranger: 2·300
    policy = EstimatedTTFT(affinity_weight=0.0)
    assert policy.score(RequestShape(300), fleet, [300, 0]) == [672.0, 600.0]
    # affinity 6 to both
    assert EstimatedTTFT().score(RequestShape(300), fleet, [300, 0]) == [768.0, 2400.0]


def test_a_busy_holder_loses_to_an_idle_stranger() -> None:
    fleet = loads({"waiting_tokens": 5000, "requests": 1}, {})
    scores = EstimatedTTFT().score(SHAPE, fleet, [992, 0])
    # affinity 6 · 0.992 · 1/2 without a queue: 5000 + 4.976·16 + 16·1; 4.976·1000
    assert scores == pytest.approx([5095.616, 4976.0])
    assert pick(scores, fleet, [992, 0], Random(1)) == 1


def test_a_holder_whose_cache_is_all_in_use_loses_to_one_with_room() -> None:
    fleet = loads(
        {"context_tokens": 3600, "requests": 9, "capacity_tokens": 4000},
        {"context_tokens": 2000, "peer_context_tokens": 1000, "capacity_tokens": 4000},
        {"context_tokens": 9000},  # nobody knows how much it holds
    )
    policy = EstimatedTTFT(memory_weight=4.0, affinity_weight=0.0)
    # 2·(1000−800), 600 tokens too many four times, 16·9; 2·1000 and just enough room; 2·1000
    assert policy.score(SHAPE, fleet, [800, 0, 0]) == [2944.0, 2000.0, 2000.0]


def test_room_comes_when_a_whole_request_ends() -> None:
    fleet = loads(
        {"context_tokens": 3600, "requests": 2, "peer_requests": 1, "capacity_tokens": 4000},
        {"context_tokens": 3000, "requests": 2, "capacity_tokens": 4000},
    )
    # 600 tokens too many, and the three there have 1200 each; 2·1000; 16 a request
    policy = EstimatedTTFT(affinity_weight=0.0)
    assert policy.score(SHAPE, fleet, [800, 0]) == [400.0 + 1200 + 48, 2000.0 + 32]


def test_a_stranger_goes_where_least_was_prefilled_lately() -> None:
    policy = EstimatedTTFT(affinity_weight=0.0)
    fleet = loads(*[{"capacity_tokens": 100_000_000}] * 3)
    for index in (0, 0, 1, 2):
        policy.chosen(SHAPE, fleet, [0, 0, 0], index)
    # 2000, 1000 and 1000 were given: a third more than the average twice, half of that counts
    assert policy.score(SHAPE, fleet, [0, 0, 0]) == pytest.approx(
        [2000 + 333.3, 2000 - 166.7, 2000 - 166.7], rel=1e-3
    )
    # who holds more than half of it is judged by what is left to compute
    assert policy.score(SHAPE, fleet, [501, 0, 500]) == pytest.approx(
        [998.0, 2000 - 166.7, 1000 - 166.7], rel=1e-3
    )
    # no more than 3.2 times its prompt counts
    short = RequestShape(prompt_tokens=100)
    assert policy.score(short, fleet, [0, 0, 0]) == pytest.approx([200 + 160, 200 - 160, 200 - 160], rel=1e-3)


def test_balance_never_outweighs_a_match_of_more_than_four_fifths() -> None:
    policy = EstimatedTTFT(affinity_weight=0.0)
    fleet = loads({}, {})
    for _ in range(50):
        policy.chosen(SHAPE, fleet, [0, 0], 0)
    # 2·208; 2·1000 less half of 3200
    assert policy.score(SHAPE, fleet, [792, 0]) == pytest.approx([416.0, 400.0])
    # no stranger any more
    assert policy.score(SHAPE, fleet, [808, 0]) == [384.0, 2000.0]
    assert policy.excess_tokens(SHAPE, fleet, [808, 0]) is None


def test_without_a_weight_balance_does_not_count() -> None:
    policy = EstimatedTTFT(balance_weight=0.0)
    fleet = loads({}, {})
    policy.chosen(SHAPE, fleet, [0, 0], 0)
    assert policy.score(SHAPE, fleet, [0, 0]) == [2000.0, 2000.0]


def test_what_was_prefilled_fades_as_caches_turn_over() -> None:
    recent = RecentPrefill()
    one, two = fleet = loads({"capacity_tokens": 1000}, {"capacity_tokens": 1000})
    recent.add(fleet, 0, 500)
    for _ in range(8):
        recent.add(fleet, 1, 250)
    # 2000 tokens later, as many as both caches hold, 1/e of it is left
    assert recent.of(one.worker) == pytest.approx(500 / exp(1))
    # each 250 fades by e^(-1/8) for each that came later
    assert recent.of(two.worker) == pytest.approx(250 * sum(exp(-n / 8) for n in range(8)))


def test_who_joins_later_counts_as_average() -> None:
    recent = RecentPrefill()
    one, two, new = loads({}, {}, {})
    recent.add([one, two], 0, 300)
    assert (recent.of(one.worker), recent.of(two.worker), recent.of(new.worker)) == (300, 0, 150)
    recent.add([one, two, new], 2, 50)
    # a few tokens in 1.2 million: nothing has faded yet
    assert recent.of(new.worker) == pytest.approx(200, rel=1e-3)
    # 500 in all
    assert recent.above_mean([one, two, new], 1000.0) == pytest.approx([133.3, -166.7, 33.3], rel=1e-2)
    assert recent.above_mean([one, two, new], 100.0) == pytest.approx([100, -100, 33.3], rel=1e-2)


def test_sums_stay_right_over_many_turnovers_and_the_departed_are_forgotten() -> None:
    recent = RecentPrefill()
    gone, a, b = loads(*[{"capacity_tokens": 100}] * 3)
    recent.add([gone, a, b], 0, 50)
    for _ in range(2000):
        recent.add([a, b], 0, 100)
        recent.add([a, b], 1, 100)
    # each fades by e^(-1/2) a choice: 100·(1 + e^-1 + e^-2 + …), b's last was the latest
    assert recent.of(b.worker) == pytest.approx(100 / (1 - exp(-1)))
    assert recent.of(a.worker) == pytest.approx(100 * exp(-0.5) / (1 - exp(-1)))
    assert len(recent) == 2


def test_context_that_is_in_use_already_needs_no_more_room() -> None:
    (load,) = loads({"capacity_tokens": 1200})
    keys = [BlockKey(i) for i in range(62)]
    Lease.take(load, prompt_tokens=1000, matched_tokens=0, keys=keys).first_byte()
    load.requests = 100
    # 800 tokens too many, of which 768 are those of the request in flight: 2·16 + 4·32 + 16·100
    shape = RequestShape(prompt_tokens=1000, keys=keys)
    # and a twentieth of the 1000 that decode
    policy = EstimatedTTFT(memory_weight=4.0, affinity_weight=0.0)
    assert policy.score(shape, [load], [992]) == [1810.0]


def test_product() -> None:
    fleet = loads({"waiting_tokens": 100, "requests": 2}, {"requests": 0}, {"requests": 9})
    # (100 + 200)·3; (0 + 1000)·1; a full match counts one token: (0 + 1)·10
    assert Product().score(SHAPE, fleet, [800, 0, 1000]) == [900.0, 1000.0, 10.0]


def test_additive_in_blocks() -> None:
    fleet = loads({"waiting_tokens": 160, "decoding_tokens": 3200}, {"decoding_tokens": 320})
    shape = RequestShape(prompt_tokens=640)
    # (160 + 640 − 480)/16 + (3200 + 640)/16 = 20 + 240; (640)/16 + (320 + 640)/16 = 40 + 60
    assert Additive(Random(1)).score(shape, fleet, [480, 0]) == [260.0, 100.0]
    assert Additive(Random(1), overlap_weight=3.0).score(shape, fleet, [480, 0]) == [300.0, 180.0]


def test_additive_samples_a_softmax_of_the_scaled_costs() -> None:
    policy = Additive(Random(7), temperature=0.5)
    fleet = loads({}, {"decoding_tokens": 160}, {"decoding_tokens": 320})  # costs apart by 0, 10, 20 blocks
    drawn: Counter[int] = Counter()
    for _ in range(4000):
        scores = policy.score(SHAPE, fleet, [0, 0, 0])
        drawn[scores.index(min(scores))] += 1
    weights = [exp(-0.0 / 0.5), exp(-0.5 / 0.5), exp(-1.0 / 0.5)]
    for i in range(3):
        assert drawn[i] / 4000 == pytest.approx(weights[i] / sum(weights), abs=0.03)


def take_turns(policy: RoundRobin, fleet: Sequence[WorkerLoad]) -> str:
    scores = policy.score(SHAPE, fleet, [0] * len(fleet))
    index = scores.index(min(scores))
    policy.chosen(SHAPE, fleet, [0] * len(fleet), index)
    return fleet[index].worker[len("http://") : -len(":1")]


def test_round_robin_takes_turns_also_while_workers_come_and_go() -> None:
    policy, (a, b, c) = RoundRobin(), loads({}, {}, {})
    assert [take_turns(policy, [a, b, c]) for _ in range(4)] == ["w0", "w1", "w2", "w0"]
    assert take_turns(policy, [b, c]) == "w1"  # w0 is out
    assert take_turns(policy, [a, c]) == "w2"  # w1 is out: the one after it
    assert take_turns(policy, [a, b, c]) == "w0"
    assert policy.score(SHAPE, [a, b, c], [0, 0, 0]) == [2.0, 0.0, 1.0]
    assert policy.score(SHAPE, [a, b, c], [0, 0, 0]) == [2.0, 0.0, 1.0]  # asking moves nothing


def test_least_requests() -> None:
    assert LeastRequests().score(SHAPE, requests(3, 1, 2), [900, 0, 0]) == [3.0, 1.0, 2.0]


def test_power_of_two_compares_two_at_random() -> None:
    policy, inf = PowerOfTwo(Random(3)), float("inf")
    seen = {tuple(policy.score(SHAPE, requests(3, 1, 2), [0, 0, 0])) for _ in range(100)}
    assert seen == {(3.0, 1.0, inf), (3.0, inf, 2.0), (inf, 1.0, 2.0)}
    assert policy.score(SHAPE, requests(5), [0]) == [5.0]


def test_a_session_stays_and_moves_only_when_its_worker_goes() -> None:
    policy, fleet = SessionAffinity(), requests(0, 0, 0, 0)

    def home(session: str, of: list[WorkerLoad]) -> WorkerId:
        scores = policy.score(RequestShape(10, session=session), of, [0] * len(of))
        return of[scores.index(min(scores))].worker

    homes = {str(i): home(str(i), fleet) for i in range(400)}
    assert {str(i): home(str(i), requests(9, 9, 9, 9)) for i in range(400)} == homes
    left = fleet[1:]
    moved = [s for s, worker in homes.items() if home(s, left) != worker]
    assert sorted(moved) == sorted(s for s, worker in homes.items() if worker == fleet[0].worker)
    assert min(Counter(homes.values()).values()) > 60
    assert policy.score(SHAPE, requests(2, 1), [0, 0]) == [2.0, 1.0]


def test_consistent_hashing_walks_on_at_the_bound() -> None:
    policy = ConsistentHash()
    shape = RequestShape(100, keys=[BlockKey(1 << 63)])
    idle = policy.score(shape, requests(0, 0, 0, 0), [0] * 4)
    assert sorted(idle) == [0.0, 1.0, 2.0, 3.0]
    first, second = idle.index(0.0), idle.index(1.0)
    # 7 in flight: bound ⌈1.25·8/4⌉ = 3
    counts = [1, 1, 1, 1]
    counts[first] = 3
    counts[second] = 2
    scores = policy.score(shape, requests(*counts), [0] * 4)
    assert scores[first] == 4.0  # behind all the others
    assert min(scores) == scores[second] == 1.0


def test_consistent_hashing_by_session_prefix_or_load() -> None:
    policy, fleet = ConsistentHash(), requests(0, 0, 0)
    by_session = policy.score(RequestShape(100, keys=[BlockKey(5)], session="s"), fleet, [0] * 3)
    assert policy.score(RequestShape(100, keys=[BlockKey(6)], session="s"), fleet, [0] * 3) == by_session
    by_family = policy.score(RequestShape(100, keys=[BlockKey(5), BlockKey(7)]), fleet, [0] * 3)
    assert policy.score(RequestShape(100, keys=[BlockKey(5), BlockKey(9)]), fleet, [0] * 3) == by_family
    assert policy.score(RequestShape(3), requests(4, 2, 3), [0] * 3) == [4.0, 2.0, 3.0]


def test_consistent_hashing_spreads_keys() -> None:
    policy, fleet = ConsistentHash(), requests(0, 0, 0, 0)
    homes: Counter[int] = Counter()
    for i in range(2000):
        shape = RequestShape(100, session=str(i))
        homes[policy.score(shape, fleet, [0] * 4).index(0.0)] += 1
    assert min(homes.values()) > 350  # 500 each, but for the ring's unevenness


def test_tree_threshold() -> None:
    policy = TreeThreshold()
    balanced = requests(60, 10, 0)
    assert policy.score(SHAPE, balanced, [0, 301, 10]) == [0.0, -301.0, -10.0]
    assert policy.score(SHAPE, balanced, [0, 300, 10]) == [0.0, 0.0, 0.0]  # not above 0.3: smallest tree
    policy.chosen(SHAPE, balanced, [0, 300, 10], 1)
    policy.chosen(SHAPE, balanced, [100, 0, 10], 0)
    policy.chosen(SHAPE, balanced, [1000, 0, 10], 0)  # all of it is there: nothing grows
    assert policy.score(SHAPE, balanced, [0, 300, 10]) == [900.0, 700.0, 0.0]
    assert policy.score(SHAPE, requests(65, 0), [900, 0]) == [65.0, 0.0]  # out of balance: affinity is off
    assert policy.score(SHAPE, requests(200, 135), [900, 0]) == [-900.0, 0.0]  # 65 apart, below 1.5 ×


def test_prefix_gate() -> None:
    policy = PrefixGate()
    assert policy.score(SHAPE, requests(9, 0), [900, 0]) == [9.0, 0.0]  # more than 8 apart
    # mean 4, σ 3.27: at most 7.27 requests; the longest match is beyond it
    assert policy.score(SHAPE, requests(8, 0, 4), [900, 100, 500]) == [2.0, 1.0, 0.0]
    # equal matches: fewest requests; no match: fewest requests
    assert policy.score(SHAPE, requests(4, 3, 0), [500, 500, 0]) == [1.0, 0.0, 2.0]  # mean + σ is 4.03
    assert policy.score(SHAPE, requests(2, 1, 1), [0, 0, 0]) == [1.0, 0.0, 0.0]


def test_explore() -> None:
    policy = Explore()
    fleet = loads({"waiting_tokens": 700}, {"waiting_tokens": 600}, {})
    assert policy.score(SHAPE, fleet, [501, 501, 0]) == [1.0, 0.0, 2.0]  # exploit: lighter of the two holders
    # half is not above one half: explore by load + prefill
    assert policy.score(SHAPE, fleet, [500, 400, 0]) == [1200.0, 1200.0, 1000.0]
    # a full cache: what must go is counted too; 100 of 110 blocks used leave room for 160 tokens
    full = loads({"cached_blocks": 100, "capacity_blocks": 110})
    assert policy.score(SHAPE, full, [0]) == [1000.0 + 840.0]


def test_ties_go_to_the_coldest_cache_only_where_nobody_knows_the_prompt() -> None:
    fleet = loads(
        {"cached_blocks": 90, "capacity_blocks": 100},
        {"cached_blocks": 30, "capacity_blocks": 100, "requests": 1},
        {"cached_blocks": 32, "capacity_blocks": 100},
    )
    assert pick([5.0, 5.0, 5.0], fleet, [0, 0, 0], Random(1)) == 2  # 30 % and 32 % are alike: fewer requests
    assert pick([4.0, 5.0, 5.0], fleet, [0, 0, 0], Random(1)) == 0
    assert pick([5.0, 5.0, 6.0], fleet, [16, 16, 0], Random(1)) == 0  # known: fewest requests


def test_last_ties_are_drawn() -> None:
    fleet, random = requests(0, 0, 0, 0), Random(5)
    drawn = Counter(pick([1.0] * 4, fleet, [0] * 4, random) for _ in range(400))
    assert sorted(drawn) == [0, 1, 2, 3]
    assert min(drawn.values()) > 60


def test_every_policy_by_name_scores_every_candidate() -> None:
    assert DEFAULT_POLICY in POLICIES
    for name in POLICIES:
        policy = make_policy(name, random=Random(1))
        assert policy.name == name
        for fleet in (requests(0), requests(1, 2, 3)):
            assert len(policy.score(SHAPE, fleet, [0] * len(fleet))) == len(fleet)
            assert len(policy.score(RequestShape(0), fleet, [0] * len(fleet))) == len(fleet)


def test_parameters_by_name() -> None:
    policy = make_policy("tree_threshold", {"cache_threshold": 0.8}, random=Random(1))
    assert policy == TreeThreshold(cache_threshold=0.8)
    with pytest.raises(ConfigError, match="unknown policy 'best'; there are: estimated_ttft, product"):
        make_policy("best", random=Random(1))
    with pytest.raises(ConfigError, match="no parameter 'gat'; it has: gate, deviations"):
        make_policy("prefix_gate", {"gat": 1}, random=Random(1))
    with pytest.raises(ConfigError, match="no parameter 'name'; it has: none"):
        make_policy("product", {"name": 1}, random=Random(1))
    with pytest.raises(ConfigError, match="gate='8' is no whole number from 0 to 1,000,000,000"):
        make_policy("prefix_gate", {"gate": "8"}, random=Random(1))


def test_what_counts_something_is_whole_however_it_was_written() -> None:
    made = make_policy("consistent_hash", {"prefix_blocks": 2.0, "points": 50.0}, random=Random(1))
    keys = [BlockKey(1), BlockKey(2)]
    assert len(made.score(RequestShape(32, keys), requests(0, 0), [0, 0])) == 2
    with pytest.raises(ConfigError, match=r"prefix_blocks=1\.5 is no whole number from 1 to 1,000,000"):
        make_policy("consistent_hash", {"prefix_blocks": 1.5}, random=Random(1))
