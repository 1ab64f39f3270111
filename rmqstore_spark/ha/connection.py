"""A connection between a master and a slave, plain or TLS.

Both ends must be configured for the same: nobody falls back to the other. The first byte tells a
master what a slave uses: it is 0 in a plain one's first report, since no log has 2**56 bytes.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Final

from rmqstore_spark.base.tlsstream import TlsStream
from rmqstore_spark.remoting.tls import HANDSHAKE, tls_reason

_MORE: Final = getattr(socket, "MSG_MORE", 0)  # Linux


class HaConnection:
    """One end of it. One thread can read while another one writes, and any can end it.

    Args:
        connected: the socket; it belongs to this object from now on.
        seconds: how long a handshake, a read or a write may take.
    """

    def __init__(self, connected: socket.socket, seconds: float) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(seconds)
        self._socket = connected
        self._seconds = seconds
        self._tls: TlsStream | None = None
        self._changing = threading.Lock()

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS; known once the handshake is over."""
        return self._tls is not None

    def settimeout(self, seconds: float) -> None:
        """Set how long a read or a write may take."""
        self._seconds = seconds
        if self._tls is None:
            self._socket.settimeout(seconds)

    def accept(self, tls: ssl.SSLContext | None) -> str:
        """Wait for the first byte of a slave, and do the handshake if there is one.

        Args:
            tls: the certificates of the master; None: slaves must not use TLS.

        Returns:
            Why the connection must end, or "".

        Raises:
            TimeoutError: the slave sent nothing.
            OSError: the connection broke.
        """
        first = self._socket.recv(1, socket.MSG_PEEK)
        if not first:
            return "the slave closed it"
        if tls is None:
            is_plain = first != HANDSHAKE
            return "" if is_plain else "it uses TLS, and haTlsEnable is not set here"
        if first != HANDSHAKE:
            return "it does not use TLS, and haTlsEnable is set here"
        try:
            self._shake_hands(tls, None)
        except TimeoutError:
            return f"its TLS handshake took more than {self._seconds:g} s (haHousekeepingInterval)"
        except OSError as error:
            return f"its TLS handshake failed ({tls_reason(error)})"
        return ""

    def secure(self, tls: ssl.SSLContext, master: str) -> None:
        """Do the handshake with a master.

        Args:
            tls: what to check its certificate with, and what to show it.
            master: the host that the certificate must name.

        Raises:
            OSError: it failed.
        """
        try:
            self._shake_hands(tls, master)
        except TimeoutError:
            text = f"the TLS handshake took more than {self._seconds:g} s (haHousekeepingInterval)"
            raise OSError(text) from None
        except ssl.SSLCertVerificationError as error:
            raise OSError(
                f"the master's certificate is refused: {tls_reason(error)} (see "
                "tlsClientTrustCertPath, and the host in haMasterAddress)"
            ) from error
        except OSError as error:
            raise OSError(
                f"the TLS handshake failed ({tls_reason(error)}): is haTlsEnable set at the "
                "master? See its log"
            ) from error

    def recv_into(self, target: memoryview) -> int:
        """Receive what there is, after waiting for some of it; return 0 at the end.

        Raises:
            TimeoutError: nothing came.
            OSError: the connection broke.
        """
        tls = self._tls
        if tls is None:
            return self._socket.recv_into(target)
        try:
            count = tls.recv_into(target, self._seconds)
        except ssl.SSLError as error:
            raise OSError(tls_reason(error)) from error
        with suppress(OSError):  # the next call meets it again
            while 0 < count < len(target) and (more := tls.recv_into(target[count:], 0)):
                count += more
        return count

    def sendall(self, data: bytes | memoryview, *, more: bool = False) -> None:
        """Send bytes. Only one thread may call this at a time.

        Args:
            data: the bytes.
            more: whether others follow at once. A plain connection then waits for those.

        Raises:
            TimeoutError: the other end did not take them.
            OSError: the connection broke.
        """
        tls = self._tls
        if tls is None:
            self._socket.sendall(data, _MORE if more else 0)
            return
        deadline = self.deadline()
        left = memoryview(data)
        while left := left[tls.send(left) :]:
            if time.monotonic() > deadline:
                raise TimeoutError("the other end reads too slowly")

    def deadline(self) -> float:
        """Return until when what is sent now must be sent, by `time.monotonic`."""
        return time.monotonic() + self._seconds

    def send_file(self, descriptor: int, offset: int, size: int, deadline: float) -> int:
        """Send a part of a file without copying it, over a connection that is not encrypted.

        Args:
            descriptor: of the file.
            offset: of the part's first byte in the file.
            size: its bytes.
            deadline: see `deadline`. A slave that takes a little now and then does not extend it.

        Returns:
            The number of bytes sent: fewer if the file ends before.

        Raises:
            TimeoutError: the other end did not take them.
            OSError: the connection broke.
        """
        sent, connected = 0, self._socket.fileno()
        while sent < size:
            try:
                count = os.sendfile(connected, descriptor, offset + sent, size - sent)
            except BlockingIOError:
                self._await_room(connected, deadline)
                continue
            if not count:
                break
            sent += count
        return sent

    def cut(self) -> None:
        """End the connection from any thread. Reads and writes that wait end too."""
        # SSLSocket's own shutdown would make a reading thread return encrypted bytes.
        with suppress(OSError), self._changing:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may use it any more."""
        self._socket.close()

    def _await_room(self, connected: int, deadline: float) -> None:
        writable = select.poll()
        writable.register(connected, select.POLLOUT)
        left = deadline - time.monotonic()
        if left <= 0 or not writable.poll(left * 1000):
            raise TimeoutError("the other end reads too slowly")

    def _shake_hands(self, context: ssl.SSLContext, master: str | None) -> None:
        with self._changing:  # in two steps, so that `cut` can end a handshake
            tls = context.wrap_socket(
                self._socket, server_side=master is None, server_hostname=master,
                do_handshake_on_connect=False,
            )  # fmt: skip
            self._socket = tls
        tls.do_handshake()
        self._tls = TlsStream(tls, self._seconds)
