"""What is known of the engine cores' blocks, against a plain account of what was said."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coordinator.block_index import BlockIndex, Match
from coordinator.events import Identity
from protocol.identifiers import RequestId
from protocol.messages import BlocksChanged, RequestKey
from protocol.prefix_hash import BlockKey

ENGINES = [Identity(b"e0"), Identity(b"e1"), Identity(b"e2")]
E0, E1, _ = ENGINES


def keys(branch: str, count: int, start: int = 0) -> list[BlockKey]:
    """The blocks of a prompt; branches share nothing."""
    return [BlockKey(f"{branch}{place:05d}".encode().rjust(16, b".")) for place in range(start, start + count)]


def key(name: str) -> RequestKey:
    return RequestKey(RequestId(name))


def index_with(engine: Identity, stored: Sequence[BlockKey], max_blocks: int = 1000) -> BlockIndex:
    index = BlockIndex(max_blocks)
    assert index.told(engine, BlocksChanged(0, anew=True), stored, ())
    return index


def test_what_is_stored_of_a_prompt_is_counted_from_its_first_block_on() -> None:
    index = index_with(E0, keys("a", 5))
    matches = [index.match(E0, keys(*prompt)).blocks for prompt in (("a", 3), ("a", 5), ("a", 9), ("b", 4), ("a", 0))]
    assert matches == [3, 5, 5, 0, 0]
    assert index.match(E1, keys("a", 5)).blocks == 0


@given(st.integers(0, 40), st.integers(0, 40))
def test_halving_finds_the_same_as_counting(stored: int, asked: int) -> None:
    assert index_with(E0, keys("a", stored)).match(E0, keys("a", asked)).blocks == min(stored, asked)


def test_evicted_blocks_are_gone() -> None:
    index = index_with(E0, keys("a", 5))
    assert index.told(E0, BlocksChanged(1), (), keys("a", 2, start=3))
    assert index.match(E0, keys("a", 5)).blocks == 3


def test_what_was_sent_counts_until_it_is_stored_or_its_request_has_ended() -> None:
    index = index_with(E0, keys("a", 2))
    index.expect(E0, key("r"), keys("a", 6))
    assert index.match(E0, keys("a", 9)).blocks == 6
    index.told(E0, BlocksChanged(1), keys("a", 2, start=2), ())
    index.ended(E0, key("r"))
    assert index.match(E0, keys("a", 9)).blocks == 4, "two of them were stored, two never came"


def test_a_block_that_two_requests_bring_is_expected_of_the_first() -> None:
    index = index_with(E0, ())
    index.expect(E0, key("first"), keys("a", 4))
    index.expect(E0, key("second"), keys("a", 6))
    index.ended(E0, key("second"))
    assert index.match(E0, keys("a", 6)).blocks == 4
    index.check_invariants()


def test_a_block_that_came_and_went_is_expected_of_who_brings_it_again() -> None:
    index = index_with(E0, ())
    index.expect(E0, key("first"), keys("a", 4))
    index.told(E0, BlocksChanged(1), keys("a", 4), ())
    index.told(E0, BlocksChanged(2), (), keys("a", 4))
    index.expect(E0, key("second"), keys("a", 4))
    index.ended(E0, key("first"))
    assert index.match(E0, keys("a", 4)).blocks == 4


def test_nothing_is_expected_of_an_engine_core_that_stores_nothing() -> None:
    index = BlockIndex()
    index.expect(E0, key("r"), keys("a", 4))
    assert index.match(E0, keys("a", 4)).blocks == 0


def test_after_a_gap_nothing_counts_until_the_whole_is_told_anew() -> None:
    index = index_with(E0, keys("a", 2))
    assert not index.told(E0, BlocksChanged(2), keys("a", 1, start=2), ()), "the whole must be asked for"
    assert index.match(E0, keys("a", 3)).blocks == 0
    assert index.told(E0, BlocksChanged(3), keys("b", 1), ()), "once"
    assert index.match(E0, keys("b", 1)).blocks == 0
    assert index.told(E0, BlocksChanged(4, anew=True), keys("a", 2), ())
    assert index.told(E0, BlocksChanged(5), keys("a", 1, start=2), ())
    assert index.match(E0, keys("a", 3)).blocks == 3


def test_one_whose_beginning_was_missed_is_asked_for_the_whole() -> None:
    assert not BlockIndex().told(E0, BlocksChanged(4), keys("a", 1), ())


def test_an_engine_core_that_is_gone_has_nothing() -> None:
    index = index_with(E0, keys("a", 3))
    index.expect(E0, key("r"), keys("b", 3))
    index.leave(E0)
    assert len(index) == 0
    assert index.match(E0, keys("a", 3)).blocks == 0
    index.ended(E0, key("r"))
    index.check_invariants()


def test_at_the_limit_the_one_that_has_most_forgets_what_it_told_first() -> None:
    index = index_with(E0, keys("a", 6), max_blocks=10)
    index.told(E1, BlocksChanged(0, anew=True), keys("b", 3), ())
    index.told(E0, BlocksChanged(1), keys("c", 3), ())
    assert len(index) == 10
    assert index.match(E0, keys("a", 2)).blocks == 0, "the first two are forgotten"
    assert index.match(E0, keys("a", 6)).blocks == 6, "but those behind them tell that they are there"
    assert index.match(E0, keys("c", 3)).blocks == 3
    assert index.match(E1, keys("b", 3)).blocks == 3


def test_beyond_the_limit_nothing_more_is_expected() -> None:
    index = index_with(E0, keys("a", 8), max_blocks=10)
    index.expect(E0, key("r"), keys("b", 5))
    assert index.match(E0, keys("b", 5)).blocks == 2
    index.check_invariants()


def test_requests_are_counted_where_what_they_have_in_common_ends() -> None:
    index = index_with(E0, keys("a", 4))
    for number, prompt in enumerate((keys("a", 4) + keys("b", 2), keys("a", 4) + keys("c", 2), keys("a", 2))):
        index.expect(E0, key(f"r{number}"), prompt)
    assert index.match(E0, keys("a", 4) + keys("d", 1)) == Match(4, 2)
    assert index.match(E0, keys("a", 2)) == Match(2, 1)
    assert index.match(E0, keys("a", 4) + keys("b", 9)) == Match(6, 0), "a conversation goes on from where it was"
    assert index.match(E0, keys("d", 1)) == Match()


class BlockIndexAgainstAnAccount(RuleBasedStateMachine):
    """Engine cores store and evict the ends of branches, tell it in order, and sometimes a message is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex(max_blocks=10_000)
        self.sequences = dict.fromkeys(ENGINES, 0)
        self.stored: dict[Identity, dict[str, int]] = {engine: {} for engine in ENGINES}
        self.known: dict[Identity, bool] = dict.fromkeys(ENGINES, False)
        self.expected: dict[Identity, dict[RequestKey, tuple[str, int]]] = {engine: {} for engine in ENGINES}
        self.requests = 0

    def say(self, engine: Identity, stored: list[BlockKey], evicted: list[BlockKey], anew: bool, lost: bool) -> None:
        change = BlocksChanged(self.sequences[engine], anew)
        self.sequences[engine] += 1
        if lost:
            self.known[engine] = False
        else:
            is_fine = self.index.told(engine, change, stored, evicted)
            self.known[engine] = anew or (is_fine and self.known[engine])

    @rule(engine=st.sampled_from(ENGINES), branch=st.sampled_from("abc"), count=st.integers(0, 12), lost=st.booleans())
    def blocks_change(self, engine: Identity, branch: str, count: int, lost: bool) -> None:
        """Of a branch there are so many blocks from now on."""
        before = self.stored[engine].get(branch, 0)
        self.stored[engine][branch] = count
        grown, shrunk = keys(branch, max(0, count - before), before), keys(branch, max(0, before - count), count)
        self.say(engine, grown, shrunk, anew=False, lost=lost and count % 3 == 0)

    @rule(engine=st.sampled_from(ENGINES))
    def all_is_told(self, engine: Identity) -> None:
        whole = [key for branch, count in self.stored[engine].items() for key in keys(branch, count)]
        self.say(engine, whole, [], anew=True, lost=False)

    @rule(engine=st.sampled_from(ENGINES), branch=st.sampled_from("abc"), count=st.integers(1, 15))
    def a_request_is_sent(self, engine: Identity, branch: str, count: int) -> None:
        self.requests += 1
        name = key(f"r{self.requests}")
        self.index.expect(engine, name, keys(branch, count))
        self.expected[engine][name] = (branch, count)

    @rule(engine=st.sampled_from(ENGINES))
    def all_its_requests_end(self, engine: Identity) -> None:
        for name in self.expected[engine]:
            self.index.ended(engine, name)
        self.expected[engine].clear()

    @rule(engine=st.sampled_from(ENGINES))
    def an_engine_core_goes(self, engine: Identity) -> None:
        self.index.leave(engine)
        self.stored[engine], self.expected[engine], self.known[engine] = {}, {}, False

    @invariant()
    def it_agrees(self) -> None:
        self.index.check_invariants()
        for engine in (each for each in ENGINES if self.known[each]):
            for branch in "abc":
                found = self.index.match(engine, keys(branch, 20)).blocks
                stored = self.stored[engine].get(branch, 0)
                sent = [count for which, count in self.expected[engine].values() if which == branch]
                assert stored <= found <= max([stored, *sent])


TestBlockIndexAgainstAnAccount = BlockIndexAgainstAnAccount.TestCase
TestBlockIndexAgainstAnAccount.settings = settings(max_examples=60, stateful_step_count=40)
