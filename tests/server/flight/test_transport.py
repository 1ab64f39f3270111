"""An encrypted connection while other threads use it too."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from rmqstore_spark.server.flight.transport import TlsTransport
from tests.support.certificates import make_certificates


def test_nothing_is_sent_before_the_handshake_is_done(tmp_path: Path) -> None:
    """A store that closes says goodbye to connections in their handshake; OpenSSL crashed."""
    files = make_certificates(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(files.server_cert, files.server_key)
    calling = ssl.create_default_context(cafile=files.ca)
    calling.check_hostname = False
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            transport = TlsTransport(listening.accept()[0], 5, serving)
        received: list[bytes] = []

        def receive(client: socket.socket = client, received: list[bytes] = received) -> None:
            with calling.wrap_socket(client) as encrypted:
                received.append(encrypted.recv(1))

        threads = [threading.Thread(target=receive), threading.Thread(target=transport.begin)]
        for thread in threads:
            thread.start()
        while threads[1].is_alive():
            transport.send_now(b"x")
        transport.send_now(b"x")
        threads[0].join(10)
        with suppress(OSError):
            transport.close()
        assert received == [b"x"]
