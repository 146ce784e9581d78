"""The owners that make up a coordinator, as the two links share them."""

import msgspec

from coordinator.block_index import BlockIndex
from coordinator.card_cache import CardCache
from coordinator.clients import ClientTable
from coordinator.dispatcher import Dispatcher
from coordinator.engines import EngineTable
from coordinator.events import Link, Outbox
from coordinator.liveness import Liveness
from coordinator.publisher import ClusterPublisher
from coordinator.settling import Settling
from protocol.identifiers import ClientIndex, Incarnation


class Settings(msgspec.Struct, frozen=True):
    """What a coordinator is started with."""

    incarnation: Incarnation
    first_client_index: ClientIndex
    """Drawn at random: see ClientTable."""
    max_requests: int
    """In flight per model."""
    heartbeat_timeout_s: float


class Parts(msgspec.Struct, frozen=True):
    """One of each. Every part changes by its own methods only."""

    incarnation: Incarnation
    outbox: Outbox
    settling: Settling
    publisher: ClusterPublisher
    engines: EngineTable
    blocks: BlockIndex
    clients: ClientTable
    cards: CardCache
    dispatcher: Dispatcher
    liveness: dict[Link, Liveness]


def make_parts(settings: Settings, started_s: float) -> Parts:
    """The parts of a coordinator that starts at `started_s` (monotonic clock, seconds)."""
    outbox = Outbox()
    settling = Settling(started_s + settings.heartbeat_timeout_s)
    publisher = ClusterPublisher(settings.incarnation)
    engines = EngineTable()
    blocks = BlockIndex()
    return Parts(
        incarnation=settings.incarnation,
        outbox=outbox,
        settling=settling,
        publisher=publisher,
        engines=engines,
        blocks=blocks,
        clients=ClientTable(settings.first_client_index),
        cards=CardCache(outbox),
        dispatcher=Dispatcher(engines, blocks, settling, publisher, outbox, settings.max_requests),
        liveness={link: Liveness(settings.heartbeat_timeout_s) for link in Link},
    )
