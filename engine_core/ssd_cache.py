"""Opens the SSD tier of an engine core, as its options say."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_core.block_file import BlockFormat
from engine_core.block_folder import BlockFolder
from engine_core.config import EngineCoreConfig
from engine_core.device import BlockPart, ModelRefused
from engine_core.model_fingerprint import model_fingerprint
from engine_core.ssd_thread import SsdThread
from engine_core.ssd_tier import BlocksRead, SsdReport

logger = logging.getLogger("shoal.engine_core")


def open_ssd_cache(
    config: EngineCoreConfig, parts: Sequence[BlockPart], on_event: Callable[[BlocksRead | SsdReport], None]
) -> SsdThread | None:
    """The thread, not started; None where blocks are not kept. `parts`: of a block of the model.

    Raises ModelRefused for options that cannot be followed.
    """
    if config.ssd_cache_dir is None:
        return None
    if not config.prefix_caching:
        raise ModelRefused("ssd_cache_dir needs prefix_caching: without it there is nothing to be kept")
    if not parts:
        logger.warning("ssd_cache_dir is of no use here: this model's prefixes are not kept beyond RAM")
        return None
    folder = Path(config.ssd_cache_dir).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fingerprint = model_fingerprint(Path(config.model).expanduser(), parts)
    except OSError as error:
        raise ModelRefused(f"ssd_cache_dir {folder}: {error}") from error
    block_format = BlockFormat(fingerprint, parts)
    if block_format.data_bytes > config.ssd_cache_bytes:
        raise ModelRefused(
            f"ssd_cache_bytes {config.ssd_cache_bytes} is less than one block of this model: {block_format.data_bytes}"
        )
    logger.info("prefixes are kept in %s, %d bytes a block of 64 tokens", folder, block_format.data_bytes)
    return SsdThread(BlockFolder(folder, block_format, config.ssd_cache_bytes), on_event)
