"""Strikes at a real cluster's processes, one after the other, on whatever is alive."""

import asyncio
import random
import signal
import time
from collections import Counter

import psutil
from published_state import Span
from shoal_process import ShoalProcess

STRIKE_EVERY_S = 1.0
ROLES = ["engine-core"] * 4 + ["api-server", "coordinator"]
KINDS = {
    "engine-core": ("killed", "killed", "drained", "frozen for good", "frozen for a while"),
    "api-server": ("killed", "frozen for a while"),
    "coordinator": ("killed", "killed", "drained", "frozen for a while"),
}
"""Nobody ends a coordinator or an API server that is frozen: they are thawed. A drained API server ends its streams."""
FROZEN_S = (0.2, 5.0)


class Strikes:
    """Who was struck, and how. Its own random numbers decide, so that a seed gives the same order of strikes."""

    def __init__(self, shoal: ShoalProcess, seed: int) -> None:
        self._shoal = shoal
        self._random = random.Random(seed)
        self._frozen: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        self.api_server_kills: list[Span] = []

    async def run(self, seconds: float) -> None:
        """Strikes for so long; returns when all that was frozen for a while is thawed."""
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await asyncio.sleep(STRIKE_EVERY_S)
            try:
                self._strike()
            except psutil.NoSuchProcess:
                self.counts["too late"] += 1
        await asyncio.gather(*self._frozen)

    def _strike(self) -> None:
        role = self._random.choice(ROLES)
        alive = sorted(self._shoal.children(role), key=lambda child: child.pid)
        kind = self._random.choice(KINDS[role])
        frozen_s = self._random.uniform(*FROZEN_S)
        if not alive:
            return
        victim = self._random.choice(alive)
        match kind:
            case "killed":
                victim.kill()
                if role == "api-server":
                    now_s = time.monotonic()
                    self.api_server_kills.append(Span(now_s, now_s))
            case "drained":
                victim.send_signal(signal.SIGTERM)
            case "frozen for good":
                victim.suspend()
            case _:
                victim.suspend()
                thaw = asyncio.create_task(_thaw(victim, frozen_s))
                self._frozen.add(thaw)
                thaw.add_done_callback(self._frozen.discard)
        self.counts[f"{role} {kind}"] += 1


async def _thaw(victim: psutil.Process, after_s: float) -> None:
    await asyncio.sleep(after_s)
    try:
        victim.resume()
    except psutil.NoSuchProcess:
        return  # killed meanwhile
