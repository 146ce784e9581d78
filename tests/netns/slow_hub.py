"""A network hub in a process: what comes from one machine goes to all others, late, and some of it never.

python slow_hub.py DELAY_MS LOSS NAMESPACE...

Makes an interface eth0 in each namespace (a TAP: the kernel gives it whole packets with their checksums). On standard
input, two numbers of machines in a line cut the way between them.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_MAX_FRAME = 65_536


def open_tap(name: str, namespace: str) -> int:
    """A file descriptor from which the packets of `eth0` in the namespace are read, and to which they are written."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "netns", namespace, "name", "eth0"], check=True)
    return tap


def main() -> None:
    """Until it is killed, or standard input ends."""
    delay_s, loss = float(sys.argv[1]) / 1_000, float(sys.argv[2])
    taps = [open_tap(f"tap{number}", namespace) for number, namespace in enumerate(sys.argv[3:])]
    print("ready", flush=True)
    lost = random.Random(1)
    cut: set[frozenset[int]] = set()
    underway: list[tuple[float, int, int, bytes]] = []  # due, a number that keeps the order, to, packet
    count = 0
    while True:
        timeout_s = max(0.0, underway[0][0] - time.monotonic()) if underway else None
        ready, _, _ = select.select([*taps, sys.stdin], [], [], timeout_s)
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            cut.add(frozenset(map(int, line.split())))
        for number, tap in enumerate(taps):
            for packet in packets(tap) if tap in ready else ():
                for to in range(len(taps)):
                    if to != number and frozenset((number, to)) not in cut and lost.random() >= loss:
                        count += 1
                        heapq.heappush(underway, (time.monotonic() + delay_s, count, to, packet))
        while underway and underway[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(underway)
            write(taps[to], packet)


def packets(tap: int) -> list[bytes]:
    """Those that are there."""
    found: list[bytes] = []
    try:
        while len(found) < 64:
            found.append(os.read(tap, _MAX_FRAME))
    except BlockingIOError:
        pass
    return found


def write(tap: int, packet: bytes) -> None:
    """A queue that is full loses it, and an interface that is not up yet."""
    try:
        os.write(tap, packet)
    except OSError:
        return


if __name__ == "__main__":
    main()
