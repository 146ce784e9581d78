"""The request -> engine core table."""

import pytest
from core_fixture import key

from coordinator.events import Identity
from coordinator.request_table import RequestTable, Routed
from protocol.identifiers import ClientIndex, RequestId


def routed(request_id: str, engine: bytes = b"e", client: int = 0, model: str = "m") -> Routed:
    return Routed(key(request_id), ClientIndex(client), Identity(engine), model, len(request_id))


def test_requests_are_found_by_id_engine_core_client_and_model() -> None:
    table = RequestTable()
    rows = [routed("b", b"e1", 1), routed("a", b"e1", 2), routed("c", b"e2", 1, "n")]
    for row in rows:
        table.add(row)
        table.check_invariants()
    assert table.find(RequestId("c")) == rows[2]
    assert table.find(RequestId("d")) is None
    assert table.of_engine(Identity(b"e1")) == [rows[1], rows[0]]
    assert table.of_client(ClientIndex(1)) == [rows[0], rows[2]]
    assert (table.engine_count(Identity(b"e1")), table.engine_count(Identity(b"x"))) == (2, 0)
    assert (table.in_flight("m"), table.in_flight("n"), table.in_flight("x")) == (2, 1, 0)
    assert table.clients() == {1, 2}
    assert table.engines() == {b"e1", b"e2"}


def test_nothing_is_left_of_what_was_removed() -> None:
    table = RequestTable()
    rows = [routed("a", b"e1", 1), routed("b", b"e2", 2, "n")]
    for row in rows:
        table.add(row)
    for row in rows:
        table.remove(row)
        table.check_invariants()
    assert len(table) == 0
    assert not table.clients() and not table.engines()


def test_a_request_cannot_be_in_two_places() -> None:
    table = RequestTable()
    table.add(routed("a", b"e1"))
    with pytest.raises(AssertionError):
        table.add(routed("a", b"e2"))
