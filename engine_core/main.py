"""Entry of the engine core's process: loads the model, starts the threads, runs the busy loop, ends in order.

Threads: main (busy loop, the only one that touches the device), input (socket to the coordinator), output (sockets
to the API servers), signals, grammars; and one for the SSD, if blocks are kept there.
"""

import logging
import os
import queue
import threading

import msgspec
import zmq

from engine_core.busy_loop import BusyLoop
from engine_core.chunk_budget import TimedChunkBudget
from engine_core.config import EngineCoreConfig
from engine_core.coordinator_link import EngineIdentity
from engine_core.core import EngineCore
from engine_core.device import ModelRefused, OpenedModel
from engine_core.events import CoreEvent, DrainRequested
from engine_core.grammar_thread import GrammarThread
from engine_core.input_thread import InputThread
from engine_core.output_thread import OutputThread, StreamsEnd
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits, longest_sequence
from engine_core.shutdown import ShutdownWatch, start_thread
from engine_core.sim_device import open_sim_device
from engine_core.sim_options import SIM_PREFIX
from engine_core.ssd_cache import open_ssd_cache
from engine_core.ssd_tier import SsdTier
from protocol.addresses import check_address
from protocol.card import pack_card
from protocol.curve import Keyring, load_keyring
from protocol.errors import AddressError, BadKey
from protocol.exit_codes import ExitCode
from protocol.identifiers import new_incarnation
from protocol.lifeline import Lifeline, Notice
from protocol.messages import ModelInfo, wall_clock_s

logger = logging.getLogger("shoal.engine_core")

JOIN_TIMEOUT_S = 3.0
"""For a thread to end when asked: more than the time for which an output socket lingers."""


def run(config: EngineCoreConfig, lifeline: Lifeline) -> int:
    """Serves until SIGTERM or SIGINT; returns the process's exit code, one of ExitCode."""
    inbox: queue.SimpleQueue[CoreEvent] = queue.SimpleQueue()

    def drain() -> None:
        lifeline.notify(Notice("draining"))
        inbox.put(DrainRequested())

    try:
        keyring = load_keyring(config.secret_key_file, config.coordinator_key)
        curve = keyring.for_coordinator(config.engines_address)
        check_address(config.engines_address, encrypted=curve is not None)
        watch = ShutdownWatch(config.drain_timeout_s, drain)
        opened = _open_model(config, lifeline)
        try:
            return _serve(config, keyring, opened, lifeline, inbox, watch)
        finally:
            opened.device.close()
    except (ModelRefused, AddressError, BadKey) as error:
        logger.error("%s", error)
        return ExitCode.HOPELESS
    except Exception:
        logger.exception("engine core failed")
        return ExitCode.FAULT


def _open_model(config: EngineCoreConfig, lifeline: Lifeline) -> OpenedModel:
    def on_progress(share: float, detail: str) -> None:
        lifeline.notify(Notice("loading", share, detail))

    on_progress(0.0, config.model)
    if config.model.startswith(SIM_PREFIX):
        return open_sim_device(config, on_progress)
    try:
        from engine_core.mlx_device import open_mlx_device  # a simulated engine core needs no MLX
    except ModuleNotFoundError as error:
        raise ModelRefused(
            f"{error.name} is not installed: an engine core needs pip install 'shoal[engine]'"
        ) from error
    return open_mlx_device(config, on_progress)


def _serve(
    config: EngineCoreConfig,
    keyring: Keyring,
    opened: OpenedModel,
    lifeline: Lifeline,
    inbox: "queue.SimpleQueue[CoreEvent]",
    watch: ShutdownWatch,
) -> int:
    ssd = open_ssd_cache(config, opened.device.block_parts, inbox.put)
    tier = None if ssd is None else SsdTier()
    scheduler, identity = _scheduler_and_identity(config, opened, tier)
    core = EngineCore(scheduler, config.drain_timeout_s, tier)
    context = zmq.Context()
    outputs = OutputThread(context, keyring, identity.incarnation, inbox)
    curve = keyring.for_coordinator(config.engines_address)
    grammars = GrammarThread(opened.card, inbox.put) if opened.takes_grammars else None
    own = identity, inbox, outputs.queue, lifeline, config.step_timeout_s, grammars
    inputs = InputThread(context, config.engines_address, curve, *own)
    helpers = [helper for helper in (ssd, grammars) if helper is not None]
    threads = [start_thread("output", outputs.run), start_thread("input", inputs.run)]
    threads += [start_thread(helper.name, helper.run) for helper in helpers]
    lookahead = opened.device.lookahead if config.async_scheduling is None else config.async_scheduling
    loop = BusyLoop(core, opened.device, inbox, outputs.queue, inputs.board, ssd, lookahead=lookahead)
    watch.serving()
    try:
        code = loop.run()
    finally:
        outputs.queue.put(StreamsEnd())
        inputs.board.close()
        for helper in helpers:
            helper.close()
        _join(threads)
        inputs.close()
        context.term()
    logger.info("ended with exit code %d", code)
    return code


def _scheduler_and_identity(
    config: EngineCoreConfig, opened: OpenedModel, ssd: SsdTier | None
) -> tuple[Scheduler, EngineIdentity]:
    try:
        limits = _limits(config, opened)
        chunk_budget = TimedChunkBudget(limits.max_num_batched_tokens)
        scheduler = Scheduler(limits, opened.card.eos_token_ids, chunk_budget, ssd)
    except ValueError as error:
        raise ModelRefused(str(error)) from error
    card = opened.card
    if limits.max_model_len < card.max_model_len:
        logger.warning("max_model_len is %d instead of the model's %d", limits.max_model_len, card.max_model_len)
        card = msgspec.structs.replace(card, max_model_len=limits.max_model_len)
    card_hash, packed_card = pack_card(card)
    identity = EngineIdentity(
        name=config.name,
        incarnation=new_incarnation(),
        pid=os.getpid(),
        model=ModelInfo(card.name, card_hash, card.max_model_len, card.created),
        packed_card=packed_card,
        vocab_size=card.vocab_size,
        stores_prefixes=config.prefix_caching and opened.device.prefix_block_tokens > 0,
        started_s=wall_clock_s(),
    )
    return scheduler, identity


def _limits(config: EngineCoreConfig, opened: OpenedModel) -> SchedulerLimits:
    """Raises ValueError when the options do not go together."""
    pool_lengths = tuple(opened.device.pool_lengths)
    most = min(opened.card.max_model_len, longest_sequence(pool_lengths))
    if config.max_model_len is not None and config.max_model_len > most:
        raise ValueError(f"max_model_len {config.max_model_len} is more than model and KV cache allow: {most} tokens")
    return SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len or most,
        kv_capacity_tokens=opened.device.kv_capacity_tokens,
        pool_lengths=pool_lengths,
        checkpoint_tokens=opened.device.checkpoint_tokens,
    )


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(JOIN_TIMEOUT_S)
        if thread.is_alive():
            logger.error("thread %s does not end", thread.name)
            os._exit(ExitCode.FAULT)
