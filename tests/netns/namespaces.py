"""Machines that are network namespaces, and what joins them: a bridge, or a hub that is slow and loses packets."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

_CLONE_NEWNET = 0x40000000
_NAMESPACES = Path("/run/netns")
SUBNET = "10.0.0"
HUB = Path(__file__).with_name("slow_hub.py")


class CannotTry(Exception):
    """This machine makes no network namespaces; the message says why."""


class Namespace(msgspec.Struct, frozen=True):
    """One machine's network."""

    name: str
    address: str
    port: str
    """Where its cable is plugged in: an interface of the switch's namespace."""


def ip(*arguments: str) -> None:
    """The command `ip`. Raises CannotTry when it fails."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise CannotTry(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def inside(namespace: Namespace) -> Iterator[None]:
    """What this thread opens and starts meanwhile, threads and processes included, is on that machine."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(_NAMESPACES / namespace.name, os.O_RDONLY)
    try:
        _enter(there)
        yield
    finally:
        _enter(home)
        os.close(there)
        os.close(home)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise CannotTry(f"setns: {os.strerror(number)}")


class Switch:
    """Owner of the namespaces of some machines and of the one between them."""

    def __init__(self, count: int) -> None:
        """Raises CannotTry when this machine lacks what it takes."""
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise CannotTry("it takes root and the command ip (iproute2)")
        self.name = f"shoal{os.getpid()}"
        self.machines = [
            Namespace(f"{self.name}-{letter}", f"{SUBNET}.{number + 1}", f"port-{letter}")
            for number, letter in enumerate("abcdefgh"[:count])
        ]
        for name in (self.name, *(machine.name for machine in self.machines)):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")

    def close(self) -> None:
        """Removes everything."""
        for name in (self.name, *(machine.name for machine in self.machines)):
            with contextlib.suppress(CannotTry):
                ip("netns", "del", name)

    def bridge(self) -> None:
        """Joins the machines by a bridge and pairs of virtual Ethernet interfaces."""
        ip("-n", self.name, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.name, "link", "set", "bridge", "up")
        for machine in self.machines:
            far_end = ("peer", "name", "eth0", "netns", machine.name)
            ip("-n", self.name, "link", "add", machine.port, "type", "veth", *far_end)
            ip("-n", self.name, "link", "set", machine.port, "master", "bridge", "up")
            _address(machine)

    def cut(self, machine: Namespace) -> None:
        """Pulls the cable out of the bridge."""
        ip("-n", self.name, "link", "set", machine.port, "down")

    def mend(self, machine: Namespace) -> None:
        """Plugs it in again."""
        ip("-n", self.name, "link", "set", machine.port, "up")

    @contextlib.contextmanager
    def hub(self, delay_ms: int = 0, loss: float = 0.0) -> Iterator["Hub"]:
        """Joins the machines by a hub that delays each packet by so much and loses this share of them.

        The kernel can do the same (tc netem), where its module is there, which it often is not.
        """
        arguments = [sys.executable, str(HUB), f"{delay_ms}", f"{loss}", *(machine.name for machine in self.machines)]
        with inside(Namespace(self.name, "", "")):
            process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise CannotTry("TAP interfaces cannot be made (/dev/net/tun)")
            for machine in self.machines:
                _address(machine)
            yield Hub(process, self.machines)
        finally:
            process.kill()
            process.communicate()


class Hub:
    """The process that passes packets on."""

    def __init__(self, process: "subprocess.Popen[str]", machines: list[Namespace]) -> None:
        self._process = process
        self._machines = machines

    def cut_between(self, one: Namespace, other: Namespace) -> None:
        """No packet goes between these two any more; to all others the way is free."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._machines.index(one)} {self._machines.index(other)}\n")
        self._process.stdin.flush()


def _address(machine: Namespace) -> None:
    ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "eth0")
    ip("-n", machine.name, "link", "set", "eth0", "up")
