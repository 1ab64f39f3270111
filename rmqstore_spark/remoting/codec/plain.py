"""Requests to send a message that are like nearly all of them: their headers are not decoded.

The kernel turns the frames of many into records at once (`layout.kernel.write_sends`). Who asks for
a field of the header after all gets it: then the header is decoded.
"""

from __future__ import annotations

from typing import Any, Final

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference.requests import MOST_FIELDS
from rmqstore_spark.remoting.codec.command import Command, Form, decode_header
from rmqstore_spark.remoting.codec.frames import HEAD_BYTES, command_of

_FORMS: Final = (Form.JSON, Form.ROCKETMQ)


class PlainSend(Command):
    """A plain request to send a message, or a batch of them.

    Args:
        frame: all of it.
        code, opaque, flag, form: of the header.
        topic: that it names.

    Attributes:
        frame, topic: as given.
    """

    __slots__ = ("_read", "frame", "topic")

    def __init__(
        self, frame: bytes, code: int, opaque: int, flag: int, form: int, topic: str
    ) -> None:
        self.frame = frame
        self.topic = topic
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.form = _FORMS[form]
        self.size = len(frame)
        self._read: Command | None = None

    def _field(name: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes properties
        return property(lambda self: getattr(self.decoded(), name))

    ext = _field("ext")
    remark = _field("remark")
    language = _field("language")
    version = _field("version")

    @property
    def field_count(self) -> int:
        return MOST_FIELDS

    @property
    def body(self) -> bytes:  # type: ignore[override]
        return self.frame[self._body_at :]

    @property
    def _body_at(self) -> int:
        return HEAD_BYTES + int.from_bytes(self.frame[5:HEAD_BYTES], "big")

    def decoded(self) -> Command:
        """Return the request with all its fields, but without the body."""
        if self._read is None:
            self._read = decode_header(self.form, self.frame[HEAD_BYTES : self._body_at])
        return self._read


def plain_sends(data: memoryview, most: int) -> tuple[list[Command], int]:
    """Return the plain requests to send with which bytes begin.

    Args:
        data: frames, of which the last may not be complete.
        most: most bytes of a frame.

    Returns:
        The requests; and where the first frame begins that is not complete, or is another.
    """
    found, at = kernel.active.plain_sends(data, most)
    return [PlainSend(*each) for each in found], at


def arrived(frame: memoryview) -> Command:
    """Return the request or answer in a frame that is complete, and whose size was checked.

    Raises:
        FrameError: its header is none.
    """
    found, _ = plain_sends(frame, len(frame))
    return found[0] if found else command_of(frame)
