"""Ports that nothing can listen on, and why."""

from __future__ import annotations

import socket

import pytest

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.addresses import bound_port


def test_a_port_of_an_outgoing_connection_is_told_as_one() -> None:
    """It was said that a process listens there, and no list of those had it."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, socket.socket() as outgoing:
        outgoing.connect(elsewhere.getsockname())
        host, port = outgoing.getsockname()
        with pytest.raises(ServiceError, match=r"an outgoing connection has the port.*ss -tanp"):
            bound_port(host, port)
