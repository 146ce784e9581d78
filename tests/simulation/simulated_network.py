"""Virtual time, channels that keep their order and lose their end, processes that die and freeze."""

import heapq
import random
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]


class World:
    """Owner of the time and of all that is to happen, in an order that only the seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 1_000.0
        self._agenda: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, time_s: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (max(time_s, self.now_s), self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_s + delay_s, action)

    def run(self, until_s: float) -> None:
        while self._agenda and self._agenda[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._agenda)
            action()
        self.now_s = until_s

    def delay_s(self) -> float:
        """Of one message: mostly short, now and then long enough to be overtaken by much else."""
        return self.random.choice((0.0001, 0.0005, 0.002, 0.002, 0.05, 0.3))


class Channel:
    """One direction of a connection: in order; when it is cut, what is under way is lost from some point on."""

    def __init__(self, world: World, deliver: Callable[[list[bytes]], None]) -> None:
        self._world = world
        self._deliver = deliver
        self._under_way: deque[list[bytes]] = deque()
        self._last_s = 0.0

    def send(self, frames: list[bytes]) -> None:
        self._under_way.append(frames)
        self._last_s = max(self._last_s, self._world.now_s + self._world.delay_s())
        self._world.at(self._last_s, self._arrive)

    def cut(self) -> None:
        kept = self._world.random.randint(0, len(self._under_way))
        while len(self._under_way) > kept:
            self._under_way.pop()

    def _arrive(self) -> None:
        if self._under_way:
            self._deliver(self._under_way.popleft())


class Process:
    """Handles things in order, while it is alive and not frozen."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_alive = True
        self.is_frozen = False
        self._held: deque[Action] = deque()

    def handle(self, action: Action) -> None:
        """Now, or when it is thawed; never once it is dead."""
        if self.is_frozen:
            self._held.append(action)
        elif self.is_alive:
            action()

    def each(self, seconds: float, action: Action) -> None:
        def again() -> None:
            if self.is_alive:
                if not self.is_frozen:
                    action()
                self.world.after(seconds, again)

        self.world.after(seconds * self.world.random.random(), again)

    def thaw(self) -> None:
        self.is_frozen = False
        while self._held and not self.is_frozen:
            action = self._held.popleft()
            if self.is_alive:
                action()

    @property
    def has_backlog(self) -> bool:
        return bool(self._held)
