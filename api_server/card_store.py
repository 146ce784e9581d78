"""Which model cards are needed, when to ask for them, and the models made of them. No socket, no clock."""

from api_server.generation_backend import NoModel, UnknownModel
from api_server.served_model import ServedModel

ASK_AGAIN_S = 10.0
"""A card that was asked for and did not come."""
UNKNOWN_AGAIN_S = 1.0
"""A card that the coordinator does not have yet."""
DAMAGED_AGAIN_S = 30.0
"""A card of which no model could be made; the same bytes will do no better, but the next transfer may."""
RETENTION_S = 60.0
"""A model stays while its last engine core restarts, so that callers hear "try again" and not "no such model"."""


class _Card:
    def __init__(self, now_s: float) -> None:
        self.ask_at_s = now_s
        self.last_needed_s = now_s
        self.is_building = False
        self.is_damaged = False
        self.model: ServedModel | None = None

    @property
    def is_missing(self) -> bool:
        return self.model is None and not self.is_building

    @property
    def is_settled(self) -> bool:
        return self.model is not None or self.is_damaged


class CardStore:
    """Owns the models that can be served, one for each card hash that engine cores name.

    Bounded by the cluster view, which names a bounded number of hashes, and by RETENTION_S.
    """

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}

    def needed(self, hashes: set[str], now_s: float) -> None:
        """These cards are named by engine cores now; others are dropped once they were not for a while."""
        for card_hash in hashes:
            self._cards.setdefault(card_hash, _Card(now_s)).last_needed_s = now_s
        for card_hash, card in list(self._cards.items()):
            if now_s - card.last_needed_s > RETENTION_S:
                del self._cards[card_hash]

    def to_ask_for(self, now_s: float) -> list[str]:
        """Cards to ask the coordinator for now; they count as asked for."""
        due = [card_hash for card_hash, card in self._cards.items() if card.is_missing and card.ask_at_s <= now_s]
        for card_hash in due:
            self._cards[card_hash].ask_at_s = now_s + ASK_AGAIN_S
        return due

    def coordinator_changed(self, now_s: float) -> None:
        """What was asked for will not be answered: it is due again."""
        for card in self._cards.values():
            card.ask_at_s = now_s

    def unknown(self, card_hash: str, now_s: float) -> None:
        """The coordinator does not have it."""
        if card_hash in self._cards:
            self._cards[card_hash].ask_at_s = now_s + UNKNOWN_AGAIN_S

    def begin(self, card_hash: str) -> bool:
        """The packed card has come. Returns whether a model is to be made of it (`finish` or `fail` must follow)."""
        card = self._cards.get(card_hash)
        if card is None or not card.is_missing:
            return False
        card.is_building = True
        return True

    def finish(self, card_hash: str, model: ServedModel) -> None:
        """The model is made."""
        card = self._cards.get(card_hash)
        if card is not None:
            card.is_building = False
            card.model = model

    def fail(self, card_hash: str, now_s: float) -> None:
        """No model could be made."""
        card = self._cards.get(card_hash)
        if card is not None:
            card.is_building = False
            card.is_damaged = True
            card.ask_at_s = now_s + DAMAGED_AGAIN_S

    def has_any(self, hashes: set[str]) -> bool:
        """Whether there is a model of one of these cards."""
        return any(card.model is not None for card_hash, card in self._cards.items() if card_hash in hashes)

    def are_settled(self, hashes: set[str]) -> bool:
        """Whether each of these cards has become a model, or has turned out to be none; no other is on its way."""
        return all(card_hash in self._cards and self._cards[card_hash].is_settled for card_hash in hashes)

    def has_named(self, name: str | None) -> bool:
        """Whether there is a model of this name; never for None, which means the only one."""
        return any(card.model is not None and card.model.name == name for card in self._cards.values())

    def models(self) -> list[ServedModel]:
        """One model per name, by name: of several cards the one needed last, then the newest files."""
        named: dict[str, ServedModel] = {}
        for card in sorted(self._cards.values(), key=_rank):
            if card.model is not None:
                named[card.model.name] = card.model
        return [named[name] for name in sorted(named)]

    def model(self, name: str | None) -> ServedModel:
        """The model of this name; None names the only one. Raises UnknownModel or NoModel."""
        models = self.models()
        if not models:
            raise NoModel("no model is served yet")
        for model in models:
            if model.name == name or (name is None and len(models) == 1):
                return model
        if name is None:
            raise UnknownModel("several models are served: name one of them in model")
        raise UnknownModel(f"the model {name[:100]!r} does not exist")

    def check_invariants(self) -> None:
        """For tests."""
        assert not any(card.is_building and card.model is not None for card in self._cards.values())


def _rank(card: _Card) -> tuple[float, int]:
    return card.last_needed_s, card.model.created if card.model is not None else 0
