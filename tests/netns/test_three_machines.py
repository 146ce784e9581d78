"""Coordinator and API server on one machine, engine cores on two others: what the network does to them."""

import re
import time
from pathlib import Path

import pytest
from chaos_streams import Stream, assert_undisturbed, run_streams
from namespaces import Switch, inside
from three_machines import Machine, seconds_until, wait_ready

pytestmark = pytest.mark.cluster

SIM = "sim:decode_ms=30,decode_ms_per_row=0"
NOTICED_S = 3.5
"""3 s of silence, and what a busy machine takes to write it down."""


def start(machines: list[Machine], allowed: Path) -> None:
    a, b, c = machines
    a.listen(SIM, allowed)
    b.join(a, SIM)
    c.join(a, SIM)
    wait_ready(a, b, c)
    with inside(a.namespace):
        a.shoal.wait_for(lambda: a.shoal.engines_up() == 2, 20, "an engine core is missing")


def requests_of(streams: list[Stream]) -> list[dict[str, object]]:
    return [stream.body for stream in streams]


def test_both_engine_cores_serve_and_a_cut_cable_is_noticed_and_mended(
    switch: Switch, machines: list[Machine], allowed: Path, expected: list[Stream]
) -> None:
    switch.bridge()
    start(machines, allowed)
    a, b, _ = machines
    noticed_s: list[float] = []
    pids = {child.pid for child in b.shoal.children()}

    def cut() -> None:
        switch.cut(b.namespace)
        noticed_s.append(seconds_until(a.shoal, "engine core engine-0@b (index", 1))
        noticed_s.append(seconds_until(a.shoal, "lost with", 10))

    with inside(a.namespace):
        streams = run_streams(a.shoal, requests_of(expected), cut, 1.0)
        assert_undisturbed(streams, expected)
        assert sum(noticed_s) < NOTICED_S
        resumed = a.shoal.metric("shoal:requests_resumed_total")
        assert 0 < resumed < len(streams), "each engine core had some"
        switch.mend(b.namespace)
        a.shoal.wait_for(lambda: a.shoal.engines_up() == 2, 5, "the engine core does not rejoin")
        assert_undisturbed(run_streams(a.shoal, requests_of(expected)), expected)
    assert {child.pid for child in b.shoal.children()} == pids, "nothing was restarted for it"


def test_a_machine_that_vanishes_is_noticed_and_may_come_back(
    switch: Switch, machines: list[Machine], allowed: Path, expected: list[Stream]
) -> None:
    switch.bridge()
    start(machines, allowed)
    a, b, _ = machines
    noticed_s: list[float] = []

    def vanish() -> None:
        switch.cut(b.namespace)  # first, so that no process can say good-bye
        b.vanish()
        noticed_s.append(seconds_until(a.shoal, "lost with", 10))

    with inside(a.namespace):
        streams = run_streams(a.shoal, requests_of(expected), vanish, 1.0)
        assert_undisturbed(streams, expected)
        assert noticed_s[0] < NOTICED_S
        switch.mend(b.namespace)
        b.join(a, SIM)
        a.shoal.wait_for(lambda: a.shoal.engines_up() == 2, 20, "the engine core does not rejoin")


@pytest.mark.parametrize(("delay_ms", "loss"), [(100, 0.0), (5, 0.05)], ids=["slow", "lossy"])
def test_a_bad_network_delays_streams_and_changes_nothing_else(
    switch: Switch, machines: list[Machine], allowed: Path, expected: list[Stream], delay_ms: int, loss: float
) -> None:
    with switch.hub(delay_ms, loss):
        start(machines, allowed)
        a = machines[0]
        with inside(a.namespace):
            began_s = time.monotonic()
            streams = run_streams(a.shoal, requests_of(expected))
            assert_undisturbed(streams, expected)
            assert time.monotonic() - began_s < 30
        for machine in machines:
            machine.stop()


def test_two_machines_that_cannot_reach_one_another_do_without(
    switch: Switch, machines: list[Machine], allowed: Path, expected: list[Stream]
) -> None:
    """The coordinator reaches both, so nobody is lost: but outputs of b do not get to the API server on c."""
    a, b, c = machines
    with switch.hub() as hub:
        a.listen(SIM, allowed, engines=1)
        b.join(a, SIM)
        c.join(a, SIM, "--engines", "0", "--api-servers", "1", "--allowed-keys-file", str(allowed))
        wait_ready(a, b, c)
        with inside(c.namespace):
            c.shoal.wait_for(lambda: c.shoal.engines_up() == 2, 20, "an engine core is missing")
            cut = lambda: hub.cut_between(b.namespace, c.namespace)  # noqa: E731
            streams = run_streams(c.shoal, requests_of(expected), cut, 1.0)
            assert_undisturbed(streams, expected)
            assert re.search(r"engine-0@b \(index \d\) cannot reach API server api-0@c", a.shoal.log)
            assert_undisturbed(run_streams(c.shoal, requests_of(expected)[:4]), expected[:4])
        for machine in machines:
            machine.stop()


def test_who_is_not_allowed_does_not_get_in_and_both_logs_say_so(
    switch: Switch, machines: list[Machine], allowed: Path
) -> None:
    switch.bridge()
    a, b, c = machines
    allowed.write_text(f"{b.public_key}\n")
    a.listen(SIM, allowed)
    b.join(a, SIM)
    c.join(a, SIM)
    wait_ready(a, b)
    reason = "the public key of --secret-key-file is not among the keys allowed there"
    a.shoal.wait_for(lambda: reason in c.shoal.log, 20, "c does not say why")
    a.shoal.wait_for(lambda: "refused a connection" in a.shoal.log, 5, "a does not say whom it refused")
    assert c.shoal.process.wait(20) == 1
    refusals = [line for line in a.shoal.log.splitlines() if "refused a connection" in line]
    assert len(refusals) == 1, "once, however many sockets tried"
    assert c.public_key[:8] in refusals[0]
    assert c.namespace.address in refusals[0]
