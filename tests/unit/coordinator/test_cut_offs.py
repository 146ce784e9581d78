"""A pair that cannot reach one another is forgotten after a while."""

import math

from coordinator.cut_offs import CUT_OFF_S, CutOffs
from coordinator.events import Identity
from protocol.identifiers import ClientIndex

ENGINE, CLIENT = Identity(b"e"), ClientIndex(1)


def test_a_pair_is_cut_off_for_a_while_and_nobody_else() -> None:
    cut_offs = CutOffs()
    assert cut_offs.next_deadline_s() == math.inf
    cut_offs.add(ENGINE, CLIENT, 5.0)
    assert (ENGINE, CLIENT) in cut_offs
    assert (ENGINE, ClientIndex(2)) not in cut_offs
    assert (Identity(b"f"), CLIENT) not in cut_offs
    assert cut_offs.next_deadline_s() == 5.0 + CUT_OFF_S
    assert not cut_offs.expire(4.9 + CUT_OFF_S)
    assert cut_offs.expire(5.0 + CUT_OFF_S)
    assert (ENGINE, CLIENT) not in cut_offs
    assert not cut_offs.expire(6.0 + CUT_OFF_S)


def test_found_again_it_counts_anew() -> None:
    cut_offs = CutOffs()
    cut_offs.add(ENGINE, CLIENT, 5.0)
    cut_offs.add(ENGINE, CLIENT, 9.0)
    assert not cut_offs.expire(5.0 + CUT_OFF_S)
    assert (ENGINE, CLIENT) in cut_offs
