"""The owners that make up a coordinator, as the two links share them."""

from collections.abc import Mapping

import msgspec

from coordinator.admission import Admission, AdmissionLimits
from coordinator.block_index import BlockIndex
from coordinator.card_cache import CardCache
from coordinator.clients import ClientTable
from coordinator.cut_offs import CutOffs
from coordinator.dispatcher import Dispatcher
from coordinator.engines import EngineTable
from coordinator.events import Link, Outbox
from coordinator.liveness import Liveness
from coordinator.publisher import ClusterPublisher
from coordinator.settling import Settling
from coordinator.tenant_limits import TenantLimits
from protocol.identifiers import ClientIndex, Incarnation
from protocol.tenants import TenantTable


class Settings(msgspec.Struct, frozen=True):
    """What a coordinator is started with."""

    incarnation: Incarnation
    first_client_index: ClientIndex
    """Drawn at random: see ClientTable."""
    limits: AdmissionLimits
    heartbeat_timeout_s: float
    tenants: Mapping[str, TenantTable] = {}
    """By name."""


class Parts(msgspec.Struct, frozen=True):
    """One of each. Every part changes by its own methods only."""

    incarnation: Incarnation
    outbox: Outbox
    settling: Settling
    publisher: ClusterPublisher
    engines: EngineTable
    blocks: BlockIndex
    cut_offs: CutOffs
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
    cut_offs = CutOffs()
    admission = Admission(settings.limits)
    tenants = TenantLimits(settings.tenants, started_s)
    return Parts(
        incarnation=settings.incarnation,
        outbox=outbox,
        settling=settling,
        publisher=publisher,
        engines=engines,
        blocks=blocks,
        cut_offs=cut_offs,
        clients=ClientTable(settings.first_client_index),
        cards=CardCache(outbox),
        dispatcher=Dispatcher(engines, blocks, cut_offs, settling, publisher, outbox, admission, tenants),
        liveness={link: Liveness(settings.heartbeat_timeout_s) for link in Link},
    )
