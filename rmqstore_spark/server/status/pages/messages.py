"""The message browser: what is asked for, a list of messages, and one message whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.base.printable import size
from rmqstore_spark.server.status.browser import LISTED, SHOWN, ListedMessage, WholeMessage
from rmqstore_spark.server.status.markup import Content, Markup, element, lines
from rmqstore_spark.server.status.pages.frame import (
    Frame,
    Head,
    count,
    facts,
    section,
    table,
    when,
)

FORMS: Final = ("json", "text", "hex")
"""The forms in which a body is shown."""

_NAMES: Final = {"json": "JSON", "text": "Text", "hex": "Hex"}
_HEX_SHOWN: Final = 16 << 10
_LONGEST_JSON: Final = 256 << 10
_JSON: Final = json.JSONEncoder(indent=2, ensure_ascii=False)
_HEX_LINE: Final = 16
_CONTROL: Final = frozenset(map(chr, (*range(9), 11, 12, *range(14, 32), 127)))
_ASCII: Final = "".join(chr(code) if 32 <= code < 127 else "." for code in range(256))


@dataclass(frozen=True)
class Wanted:
    """What a reader asks for: messages of a queue, those with a key, or one with an id.

    Attributes:
        topic, key, msg_id: empty if they are not given.
        queue_id, offset: None if they are not given.
    """

    topic: str = ""
    queue_id: int | None = None
    offset: int | None = None
    key: str = ""
    msg_id: str = ""


@dataclass(frozen=True)
class MessageList:
    """The messages that were found.

    Attributes:
        messages: at most `LISTED`.
        bounds: the first and the next offset of the queue that is browsed; None in a search.
        start: the offset from which on it is browsed.
    """

    messages: Sequence[ListedMessage]
    bounds: tuple[int, int] | None = None
    start: int = 0


def messages_page(
    frame: Frame, wanted: Wanted, topics: Sequence[str], found: MessageList | None
) -> bytes:
    """Return the page with a list of messages.

    Args:
        frame: around it.
        wanted: what the reader asked for.
        topics: names that the reader may choose.
        found: the messages; None if nothing was asked for.
    """
    return frame.document(
        "Messages",
        _form(frame, wanted, topics),
        None if found is None else _list(frame, wanted, found),
    )


def _form(frame: Frame, wanted: Wanted, topics: Sequence[str]) -> Markup:
    def field(label: str, name: str, value: str | int | None, **more: str | int) -> Markup:
        given = "" if value is None else value
        return element(
            "label", element("span", label), element("input", name=name, value=given, **more)
        )

    digits: dict[str, str | int] = {"inputmode": "numeric", "pattern": "[0-9]*", "maxlength": 18}
    return element(
        "form",
        element("input", type="hidden", name="store", value=frame.store),
        element(
            "fieldset",
            element("legend", "Find messages"),
            field("Topic", "topic", wanted.topic, list="topics", maxlength=255),
            field("Queue", "queue", wanted.queue_id, size=5, **digits),
            field("Offset", "offset", wanted.offset, size=10, **digits),
            field("or key", "key", wanted.key, maxlength=1000),
            field("or id", "id", wanted.msg_id, maxlength=255),
            element("button", "Show"),
        ),
        element("datalist", (element("option", value=name) for name in topics), id="topics"),
        element(
            "p",
            "With a topic alone, the newest messages of its first queue are listed. An id is that "
            "of a place in the log (msgId) or, with a topic, the one that the producer saw.",
            class_="hint",
        ),
        class_="browse", action=frame.to("messages").partition("?")[0], role="search",
    )  # fmt: skip


def _list(frame: Frame, wanted: Wanted, found: MessageList) -> Content:
    heads = (
        Head("Queue", is_number=True), Head("Offset", is_number=True),
        Head("Stored", is_short=True), Head("Tags"), Head("Keys"),
        Head("Size", is_number=True), Head("Body"),
    )  # fmt: skip
    rows = [
        (
            count(one.queue_id),
            frame.link(count(one.queue_offset), "message", topic=one.topic, queue=one.queue_id,
                       offset=one.queue_offset),
            when(one.stored),
            one.tags,
            " ".join(one.keys),
            size(one.size),
            element("code", _snippet(one.snippet)) if one.snippet is not None
            else element("small", "compressed"),
        )
        for one in found.messages
    ]  # fmt: skip
    if found.bounds is None:
        return table(heads, rows, "Messages found")
    first, end = found.bounds
    place = {"topic": wanted.topic, "queue": wanted.queue_id}
    older, newer = max(first, found.start - LISTED), found.start + LISTED
    told = f"Queue {wanted.queue_id} of {wanted.topic}, offsets {first:,} to {end:,}"
    return [
        table(heads, rows, told),
        element(
            "nav",
            frame.link("← Older", "messages", offset=older, **place) if found.start > first
            else None,
            frame.link("Newer →", "messages", offset=newer, **place) if newer < end else None,
            frame.link("Oldest", "messages", offset=first, **place),
            frame.link("Newest", "messages", **place),
            class_="pager", aria_label="Offsets",
        ),
    ]  # fmt: skip


def message_page(frame: Frame, found: WholeMessage, form: str) -> bytes:
    """Return the page of one message.

    Args:
        frame: around it.
        found: the message.
        form: one of FORMS in which its body is shown, or "" for the one that fits.
    """
    one = found.listed
    place: dict[str, str | int | None] = {
        "topic": one.topic, "queue": one.queue_id, "offset": one.queue_offset,
    }  # fmt: skip
    shown = form if form in FORMS else _fitting(found.body)
    links = (
        element(
            "a", _NAMES[each], href=frame.to("message", form=each, **place),
            aria_current="true" if each == shown else None,
        )
        for each in FORMS
    )  # fmt: skip
    body, remark = _body(found, shown)
    told = f"{size(found.body_size)}" + (f"; {remark}" if remark else "")
    return frame.document(
        "Message",
        facts(_facts(frame, found)),
        section(
            "Body",
            element("nav", links, aria_label="Form of the body", class_="forms"),
            element("p", told, class_="hint"),
            element("pre", body, tabindex=0),
        ),
        section(
            "Properties",
            table((Head("Name"), Head("Value")), sorted(found.properties.items()), "Properties"),
        ),
    )


def _facts(frame: Frame, found: WholeMessage) -> Mapping[str, Content]:
    one, more = found.listed, found.facts
    around = max(0, one.queue_offset - LISTED // 2)
    return {
        "Topic": frame.link(one.topic, "topic", name=one.topic),
        "Queue": count(one.queue_id),
        "Offset": [
            f"{one.queue_offset:,} · ",
            frame.link("around it", "messages", topic=one.topic, queue=one.queue_id, offset=around),
        ],
        "msgId": one.msg_id,
        "Stored": when(one.stored),
        "Born": f"{when(more['bornTimestamp'])} at {more['bornHost']}",
        "Store host": str(more["storeHost"]),
        "Physical offset": count(more["physicalOffset"]),
        "Size in the log": size(more["storeSize"]),
        "Tags": one.tags or None,
        "Keys": " ".join(one.keys) or None,
        "Consumed again": count(more["reconsumeTimes"]),
    }


def _snippet(begin: bytes) -> str:
    text = begin.decode("utf-8", "replace").rstrip("�")
    return begin[:64].hex(" ") if "�" in text or _CONTROL & set(text) else text


def _fitting(body: bytes) -> str:
    """Return the form that fits a body."""
    if body[:1] in (b"{", b"[") and _pretty(body) is not None:
        return "json"
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.start < len(body) - 3 or len(body) < SHOWN:
            return "hex"
        text = body[: error.start].decode()  # a character was cut
    return "hex" if _CONTROL & set(text) else "text"


def _body(found: WholeMessage, form: str) -> tuple[Markup, str]:
    """Return a body in a form, and what there is to say about it."""
    body = found.body
    remark = f"the first {size(len(body))} are shown" if len(body) < found.body_size else ""
    if form == "hex":
        if len(body) > _HEX_SHOWN:
            remark = f"the first {size(_HEX_SHOWN)} are shown"
        return lines(_dump(body[:_HEX_SHOWN])), remark
    if form == "json":
        text = _pretty(body)
        if text is not None:
            return lines(text), remark
        remark = f"{remark}; it is not JSON, or too deep".lstrip("; ")
    return lines(body.decode("utf-8", "replace")), remark


def _pretty(body: bytes) -> str | None:
    """Return a JSON text with a line for each value; None if it is not JSON, or too deep.

    Indents of deep values can take a thousand times the bytes of the text, so it is cut.
    """
    pieces: list[str] = []
    length = 0
    try:
        for piece in _JSON.iterencode(json.loads(body)):
            pieces.append(piece)
            length += len(piece)
            if length > _LONGEST_JSON:
                pieces.append("\n…")
                break
    except (ValueError, RecursionError):
        return None
    return "".join(pieces)


def _dump(data: bytes) -> str:
    rows = []
    for at in range(0, len(data), _HEX_LINE):
        part = data[at : at + _HEX_LINE]
        rows.append(
            f"{at:08x}  {part.hex(' '):<{3 * _HEX_LINE}} {part.decode('latin-1').translate(_ASCII)}"
        )
    return "\n".join(rows)
