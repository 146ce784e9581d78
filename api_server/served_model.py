"""A model that callers may name: its card with what was built from it once."""

import msgspec

from api_server.chat_template import ChatTemplate
from api_server.parsers.catalog import choose_parsers
from api_server.parsers.names import AUTO, ParserNames
from api_server.tokenizer import Tokenizer
from protocol.card import ModelCard


class ServedModel:
    """Tokenizer, chat template and parsers of one card. Immutable, shared by all requests."""

    def __init__(self, card: ModelCard, card_hash: str, wanted_parsers: ParserNames = AUTO) -> None:
        """Builds both; a large tokenizer takes seconds, so call it off the event loop. Raises ProtocolError.

        `card_hash` is what engine cores call the card by.
        """
        self.card = msgspec.structs.replace(card, tokenizer_json="")
        """Without the text of the tokenizer, which may have tens of megabytes."""
        self.card_hash = card_hash
        self.tokenizer = Tokenizer(card.tokenizer_json)
        self.template: ChatTemplate | None = None
        if card.chat_template is not None:
            self.template = ChatTemplate(card.chat_template, card.special_tokens)
        self.wanted_parsers = wanted_parsers
        self.parsers = choose_parsers(wanted_parsers, card.chat_template)
        """Those of its answers, "auto" replaced."""

    @property
    def name(self) -> str:
        """What callers name it by."""
        return self.card.name

    @property
    def created(self) -> int:
        """Unix time of the model files, seconds."""
        return self.card.created
