"""vllm-router's cache_aware: a fork, with sessions."""

from tests.support.bench import Bench, text

CHAT = "/v1/chat/completions"
PROMPT = text("home ", 8_192)


def test_what_the_tree_does_not_know_goes_to_the_shortest_queue_and_not_to_the_smallest_tree() -> None:
    bench = Bench("vllm-router-cache-aware", 3)
    bench.load(0, 2)
    bench.send(text("filler ", 40_000), to=1)
    bench.load(2, 2)
    assert bench.pick(PROMPT) == 1, "its tree is the largest, its queue the shortest"


def test_equal_queues_go_to_the_first() -> None:
    bench = Bench("vllm-router-cache-aware", 3)
    assert {bench.pick(PROMPT) for _ in range(20)} == {0}


def test_a_session_goes_before_the_text() -> None:
    bench = Bench("vllm-router-cache-aware", 3)
    bench.send(text("first ", 4_000), to=2, session="s", path=CHAT)
    bench.send(PROMPT, to=1)
    assert bench.pick(PROMPT, session="s", path=CHAT) == 2
    assert bench.pick(PROMPT, session="another", path=CHAT) == 1
    assert bench.pick(PROMPT, session="s") == 1, "completions go by their text"


def test_a_session_is_forgotten_after_an_hour() -> None:
    bench = Bench("vllm-router-cache-aware", 2)
    bench.send(text("first ", 4_000), to=1, session="s", path=CHAT)
    bench.load(1, 1)
    bench.later(3_600)
    assert bench.pick(PROMPT, session="s", path=CHAT) == 1
    bench.later(1)
    assert bench.pick(PROMPT, session="s", path=CHAT) == 0


def test_sessions_are_bounded() -> None:
    bench = Bench("vllm-router-cache-aware", 2)
    ask = bench.ask(bench.request())
    for number in range(10_001):
        bench.policy.chosen(ask, bench.request(session=f"s{number}", path=CHAT), bench.pool, 1, bench.now)
    assert bench.pick(session="s0", path=CHAT) == 0
    assert bench.pick(session="s1", path=CHAT) == 1


def test_weak_one_hot_instance_turns_affinity_and_sessions_off_for_the_whole_fleet() -> None:
    bench = Bench("vllm-router-cache-aware", 3)
    bench.send(PROMPT, to=1, session="s", path=CHAT)
    bench.load(2, 34)
    assert bench.pick(PROMPT) == 0
    assert bench.pick(PROMPT, session="s", path=CHAT) == 0


def test_a_slot_given_out_again_starts_empty() -> None:
    bench = Bench("vllm-router-cache-aware", 2)
    _, request = bench.send(PROMPT, to=1, session="s", path=CHAT)
    bench.end(request)
    bench.leave(1)
    bench.join("new")
    bench.load(1, 1)
    assert bench.pick(PROMPT) == 0
    assert bench.pick(PROMPT, session="s", path=CHAT) == 0
