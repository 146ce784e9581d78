"""Model cards, by content hash: kept as engine cores send them, handed to API servers that ask, never looked into."""

from collections.abc import Callable

from coordinator.events import Identity, Outbox
from protocol.codec import Frame
from protocol.messages import Card, CardUnknown

MAX_CARDS = 64
MAX_CARD_BYTES_TOTAL = 512 * 1024 * 1024
"""Of packed cards; at either limit the card that was asked for longest ago goes."""
MAX_WAITING = 4096
"""Questions that wait for a card; at the limit the answer is CardUnknown."""


class CardCache:
    """Owner of the cards, and of the questions that wait for one that is on its way."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._cards: dict[str, Frame] = {}
        self._waiting: dict[str, dict[Identity, None]] = {}

    def __contains__(self, card_hash: str) -> bool:
        return card_hash in self._cards

    def ask(self, client: Identity, card_hash: str, is_expected: bool) -> None:
        """An API server asks: it gets the card, now or, if it `is_expected`, when it comes; or CardUnknown."""
        card = self._cards.pop(card_hash, None)
        if card is not None:
            self._cards[card_hash] = card  # last used
            self._outbox.to_client(client, Card(card_hash), card)
        elif is_expected and sum(map(len, self._waiting.values())) < MAX_WAITING:
            self._waiting.setdefault(card_hash, {})[client] = None
        else:
            self._outbox.to_client(client, CardUnknown(card_hash))

    def arrived(self, card_hash: str, card: Frame) -> None:
        """An engine core has sent a card."""
        self._cards.setdefault(card_hash, card)
        for client in self._waiting.pop(card_hash, ()):
            self._outbox.to_client(client, Card(card_hash), self._cards[card_hash])
        while len(self._cards) > 1 and self._is_over_limit():
            del self._cards[next(iter(self._cards))]

    def forget_client(self, client: Identity) -> None:
        """This API server waits for nothing any more."""
        for card_hash, clients in list(self._waiting.items()):
            clients.pop(client, None)
            if not clients:
                del self._waiting[card_hash]

    def give_up(self, is_expected: Callable[[str], bool]) -> None:
        """Answers the questions for cards that nobody will send."""
        for card_hash in [each for each in self._waiting if not is_expected(each)]:
            for client in self._waiting.pop(card_hash):
                self._outbox.to_client(client, CardUnknown(card_hash))

    def _is_over_limit(self) -> bool:
        return len(self._cards) > MAX_CARDS or sum(map(len, self._cards.values())) > MAX_CARD_BYTES_TOTAL

    def check_invariants(self) -> None:
        """Raises AssertionError when a limit is broken or somebody waits for a card that is there."""
        assert len(self._cards) <= MAX_CARDS
        assert sum(map(len, self._waiting.values())) <= MAX_WAITING
        assert not self._waiting.keys() & self._cards.keys()
        assert all(self._waiting.values())
