"""Requests go where their prefixes are: the whole core, from what engine cores and API servers say."""

import msgspec
import pytest
from core_fixture import TIMEOUT_S, Core, FakeClient, FakeEngine, key

from protocol.codec import pack_token_ids
from protocol.messages import Accepted, BlocksChanged, GetBlocks, Load, Rejected, RejectReason, RouteReason
from protocol.prefix_hash import packed_block_keys, prefix_root

TOKENS = list(range(10, 650))
"""640: ten blocks."""


def keys_of(tokens: list[int], salt: str = "") -> bytes:
    return packed_block_keys(prefix_root("hash-of-small", "", salt), pack_token_ids(tokens))


class Client(FakeClient):
    """An API server that sends block keys."""

    def ask(
        self, name: str, tokens: list[int], salt: str = "", rank: int = -1, session: str = "", attempt: int = 0
    ) -> Accepted | Rejected:
        request = msgspec.structs.replace(
            self.request(name, len(tokens), attempt), cache_salt=salt, engine_rank=rank, session_key=session
        )
        self.say(request, pack_token_ids(tokens), keys_of(tokens, salt))
        (answer,) = [m for m in self.core.sent_to(self.identity) if isinstance(m, Accepted | Rejected)]
        return answer

    def place(self, name: str, tokens: list[int], **hints: object) -> int:
        answer = self.ask(name, tokens, **hints)  # type: ignore[arg-type]
        assert isinstance(answer, Accepted), answer
        return answer.engine_index


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def engines(core: Core) -> list[FakeEngine]:
    """Three that store prefixes, and have none yet."""
    engines = [FakeEngine(core, f"engine-{number}", f"e{number}") for number in range(3)]
    for engine in engines:
        engine.hello()
        engine.blocks(0, anew=True)
    return engines


@pytest.fixture
def client(core: Core) -> Client:
    client = Client(core)
    client.hello()
    return client


def test_a_request_goes_where_its_prefix_is_stored(engines: list[FakeEngine], client: Client) -> None:
    engines[2].blocks(1, stored=keys_of(TOKENS[:320]))
    answer = client.ask("r1", TOKENS)
    assert isinstance(answer, Accepted)
    assert (answer.engine_index, answer.expected_cached_tokens, answer.reason) == (2, 320, RouteReason.AFFINITY)
    assert client.ask("r1", TOKENS) == answer, "and says the same when it is asked again"


def test_the_last_token_is_never_expected_to_be_cached(engines: list[FakeEngine], client: Client) -> None:
    engines[1].blocks(1, stored=keys_of(TOKENS))
    answer = client.ask("r1", TOKENS)
    assert isinstance(answer, Accepted)
    assert answer.expected_cached_tokens == 576


def test_what_was_sent_counts_as_there_at_once(engines: list[FakeEngine], client: Client) -> None:
    first = client.place("r1", TOKENS)
    assert [client.place(f"r{number}", [*TOKENS, number]) for number in range(2, 5)] == [first] * 3
    assert client.place("other", [1, *TOKENS]) != first


def test_what_never_came_does_not_count_when_its_request_has_ended(engines: list[FakeEngine], client: Client) -> None:
    first = client.place("r1", TOKENS)
    client.abort(key("r1"))
    engines[first].report(adds_received=1)
    assert client.place("r2", TOKENS) == first + 1, "it is the next one's turn"


def test_what_is_told_of_ended_requests_counts_on(engines: list[FakeEngine], client: Client) -> None:
    first = client.place("r1", TOKENS)
    engines[first].blocks(1, stored=keys_of(TOKENS))
    engines[first].report(adds_received=1, finished=[key("r1")])
    assert client.place("r2", TOKENS) == first
    engines[first].blocks(2, evicted=keys_of(TOKENS))
    engines[first].report(adds_received=2, finished=[key("r2")])
    assert client.place("r3", TOKENS) == first + 1


def test_only_what_has_to_be_computed_counts_as_queued(engines: list[FakeEngine], client: Client) -> None:
    engines[0].blocks(1, stored=keys_of(TOKENS))
    assert client.place("r1", TOKENS) == 0
    assert client.place("r2", [*range(700, 764)]) == 1
    assert client.place("r3", [*range(800, 864)]) == 2
    assert client.place("r4", [*range(900, 964)]) == 0, "64 tokens were to be computed there, as elsewhere"


def test_a_hot_prefix_spreads_when_its_owner_is_loaded(engines: list[FakeEngine], client: Client) -> None:
    engines[0].blocks(1, stored=keys_of(TOKENS))
    client.ask("long", list(range(5_000)), rank=0)
    engines[0].report(Load(queued_prefill_tokens=5_000), adds_received=1)
    assert client.place("r1", [*TOKENS, 1]) != 0


def test_prompts_that_wait_count_without_what_is_stored_of_them(engines: list[FakeEngine], client: Client) -> None:
    """Although the engine core reports them as if nothing was."""
    engines[0].blocks(1, stored=keys_of(TOKENS))
    for number in range(3):
        client.ask(f"r{number}", [*TOKENS, number], rank=0)
    engines[0].report(Load(waiting=3, queued_prefill_tokens=3 * 641), adds_received=3)
    client.ask("other", list(range(400)), rank=1)
    client.ask("another", list(range(400)), rank=2)
    assert client.place("r4", list(range(5))) == 0, "3 tokens wait there, 400 elsewhere"


def test_another_salt_finds_nothing_of_what_is_stored(engines: list[FakeEngine], client: Client) -> None:
    engines[2].blocks(1, stored=keys_of(TOKENS, "tenant-a"))
    for name, salt, expected in (("r1", "tenant-b", 0), ("r2", "", 0), ("r3", "tenant-a", 576)):
        answer = client.ask(name, TOKENS, salt)
        assert isinstance(answer, Accepted)
        assert answer.expected_cached_tokens == expected


def test_a_gap_makes_it_ask_for_the_whole(engines: list[FakeEngine], client: Client) -> None:
    assert engines[0].blocks(1, stored=keys_of(TOKENS)) == []
    assert engines[0].blocks(3, evicted=keys_of(TOKENS)) == [GetBlocks()]
    assert client.place("r1", TOKENS) == 0, "what it had is unknown now; it is its turn"
    assert engines[1].blocks(1, stored=keys_of(TOKENS[:64]), anew=True) == []


def test_a_lost_engine_core_has_nothing_when_it_comes_back(engines: list[FakeEngine], client: Client) -> None:
    engines[2].blocks(1, stored=keys_of(TOKENS))
    engines[2].unreachable()
    engines[2].report()
    assert client.place("r1", TOKENS) == 0
    engines[2].blocks(2, stored=keys_of(TOKENS), anew=True)
    engines[0].report(adds_received=1, finished=[key("r1")])
    assert client.place("r2", TOKENS) == 2


def test_a_restarted_coordinator_learns_from_what_follows_its_welcome(client: Client) -> None:
    core = Core(settled=False, incarnation="c2")
    engines = [FakeEngine(core, f"engine-{number}", f"e{number}") for number in range(2)]
    for engine, stored in zip(engines, (b"", keys_of(TOKENS)), strict=True):
        engine.hello()
        engine.blocks(40, stored=stored[:64], anew=True)
        engine.blocks(41, stored=stored[64:])
    client = Client(core)
    client.hello()
    answer = client.ask("r1", TOKENS)
    assert isinstance(answer, Accepted)
    assert (answer.engine_index, answer.expected_cached_tokens) == (1, 576)


def test_an_engine_core_that_says_hello_again_keeps_its_blocks(engines: list[FakeEngine], client: Client) -> None:
    engines[1].blocks(1, stored=keys_of(TOKENS))
    engines[1].hello()
    assert client.place("r1", TOKENS) == 1


@pytest.mark.parametrize("buffers", [(), (b"",), (b"x" * 15, b""), (b"", b"x" * 17), (b"", b"", b"")])
def test_blocks_in_other_than_two_buffers_of_whole_keys_are_dropped(
    core: Core, engines: list[FakeEngine], buffers: tuple[bytes, ...]
) -> None:
    engines[0].say(BlocksChanged(1), *buffers)
    assert len(core.drops()) == 1


def test_more_keys_than_the_prompt_has_blocks_are_dropped(
    core: Core, engines: list[FakeEngine], client: Client
) -> None:
    client.say(client.request("r1", 64), pack_token_ids(range(64)), b"x" * 32)
    assert len(core.drops()) == 1
    client.say(client.request("r1", 64), pack_token_ids(range(64)), b"x" * 16, b"")
    assert len(core.drops()) == 1


# --- hints ---


def test_the_wanted_engine_core_gets_the_request(engines: list[FakeEngine], client: Client) -> None:
    engines[0].blocks(1, stored=keys_of(TOKENS))
    answer = client.ask("r1", TOKENS, rank=2)
    assert isinstance(answer, Accepted)
    assert (answer.engine_index, answer.reason) == (2, RouteReason.HINT)


def test_an_engine_core_that_there_is_not_cannot_be_wanted(engines: list[FakeEngine], client: Client) -> None:
    answer = client.ask("r1", TOKENS, rank=3)
    assert isinstance(answer, Rejected)
    assert answer.reason is RejectReason.NO_SUCH_ENGINE
    assert "3" in answer.message


def test_a_wanted_engine_core_that_is_away_is_waited_for_by_the_caller(
    engines: list[FakeEngine], client: Client
) -> None:
    engines[2].unreachable()
    answer = client.ask("r1", TOKENS, rank=2)
    assert isinstance(answer, Rejected)
    assert answer.reason is RejectReason.NO_ENGINE and answer.retry_after_s > 0


def test_while_it_settles_a_wanted_engine_core_may_still_come() -> None:
    core = Core(settled=False)
    client = Client(core)
    client.hello()
    FakeEngine(core, "engine-0", "e0").hello()
    request = msgspec.structs.replace(client.request("r1", 640), engine_rank=1)
    assert client.say(request, pack_token_ids(TOKENS)) == []
    FakeEngine(core, "engine-1", "e1").hello()
    (answer,) = [m for m in core.sent_to(client.identity) if isinstance(m, Accepted)]
    assert answer.engine_index == 1
    core.wait(TIMEOUT_S)


def test_requests_of_a_session_meet(engines: list[FakeEngine], client: Client) -> None:
    places = {client.place(f"r{number}", [number + 1, *TOKENS[:9]], session="s") for number in range(4)}
    assert len(places) == 1


def test_a_newer_attempt_is_a_resume(engines: list[FakeEngine], client: Client) -> None:
    first = client.place("r1", TOKENS, rank=0)
    engines[first].unreachable()
    answer = client.ask("r1", TOKENS, rank=0, attempt=1)
    assert isinstance(answer, Accepted)
    assert answer.reason is RouteReason.RESUME and answer.engine_index != first
