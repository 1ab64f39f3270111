"""Room: larger frames are read when there is room for them, and small ones always."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from rmqstore_spark.remoting.inbox import FrameInbox, Scratch
from rmqstore_spark.remoting.room import READ_BYTES, SMALL, FrameRoom
from tests.remoting.talking import ECHO, HOLD, Peer, TestService, listening, request, run, until

MIB = 1 << 20
HELD = 16 * MIB


class Asking:
    """A connection that keeps what the room says to it."""

    def __init__(self, has_asked: bool = False) -> None:
        self.has_asked = has_asked
        self.granted: list[int] = []
        self.has_looked = False
        self.has_lost = False

    def room_granted(self, size: int) -> int:
        self.granted.append(size)
        return 0

    def read_on(self) -> None:
        self.has_looked = True

    def lose_room(self) -> None:
        self.has_lost = True


def test_frames_that_are_half_sent_hold_no_more_than_they_may() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, held=HELD) as address:
            peers = [await Peer.connect(address) for _ in range(60)]
            for size in (2 * MIB, 600_000, 40_000):
                for peer in peers[:20]:
                    peer.send_some(request(ECHO, bytes(size))[:-1])
                del peers[:20]
            await until(lambda: len(service.connections) == 60)
            honest = await Peer.connect(address)
            for _ in range(30):
                await honest.send(request(ECHO, bytes(SMALL // 2)))
                await honest.commands(1)
            assert sum(each.holds for each in service.connections) <= HELD
            # A larger one gets its turn when others do not use the room that they were given.
            await honest.send(request(ECHO, bytes(2 * MIB)))
            assert len((await honest.commands(1))[0].body) == 2 * MIB

    run(test())


def test_what_was_not_read_arrives_unharmed_when_there_is_room() -> None:
    made = random.Random(3)

    async def test() -> None:
        service = TestService()
        async with listening(service, held=4 * MIB) as address:
            peers = [await Peer.connect(address) for _ in range(12)]
            bodies = [made.randbytes(made.choice((3_000, 50_000, 900_000))) for _ in range(48)]
            for number, body in enumerate(bodies):
                peers[number % 12].send_some(request(ECHO, body, number))
            for at, peer in enumerate(peers):
                for answer in await peer.commands(4):
                    assert answer.opaque % 12 == at
                    assert answer.body == bodies[answer.opaque]

    run(test())


def test_a_connection_with_more_than_its_share_of_small_requests_waits_and_no_other() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, held=MIB) as address:
            greedy = await Peer.connect(address)
            greedy.send_some(b"".join(request(HOLD, b"", n) for n in range(3000)))
            await until(lambda: len(service.held) > 300)
            other = await Peer.connect(address)
            for number in range(100):
                await other.send(request(ECHO, b"", number))
                await other.commands(1)
            assert service.connections[0].holds < MIB
            seen = 0
            while seen < 3000:
                await until(lambda: service.held)
                seen += len(service.held)
                for held in service.held:
                    held.drop()
                service.held.clear()
            await until(lambda: service.connections[0].holds == 0)

    run(test())


def test_who_does_not_use_its_room_loses_it_only_while_others_wait() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, held=HELD) as address:
            first = await Peer.connect(address)
            whole = request(ECHO, bytes(3 * MIB))
            first.send_some(whole[: 2 * MIB])
            await until(lambda: service.connections and service.connections[0].holds > MIB)
            ended = asyncio.create_task(first.ended())
            await asyncio.sleep(0)
            assert not ended.done()
            second = await Peer.connect(address)
            second.send_some(whole)
            assert len((await second.commands(1))[0].body) == 3 * MIB
            assert await ended

    run(test())


def test_those_that_have_asked_before_and_those_that_are_new_take_turns() -> None:
    async def test() -> None:
        room = FrameRoom(Limits(held=HELD))
        size = 3 * MIB  # all there is for frames of this size
        holder, new = Asking(), [Asking() for _ in range(4)]
        known = [Asking(has_asked=True) for _ in range(2)]
        for asker in (holder, *new, *known):
            room.opened()
            assert room.ask(asker, size, 0) is (asker is holder)
        room.withdraw(new[1], size, 0)
        order = []
        waiting = {"n0": new[0], "n2": new[2], "n3": new[3], "k0": known[0], "k1": known[1]}
        for _ in range(5):
            room.give_back(size, size)
            (name,) = [name for name, asker in waiting.items() if asker.granted]
            order.append(name)
            del waiting[name]
        assert order == ["n0", "k0", "n2", "k1", "n3"]
        room.give_back(size, size)
        assert room.used == 0

    run(test())


def test_a_frame_of_one_size_does_not_wait_for_those_of_another() -> None:
    async def test() -> None:
        room = FrameRoom(Limits(held=HELD))
        assert room.ask(Asking(), 3 * MIB, 0)
        assert not room.ask(Asking(), 3 * MIB, 0)
        assert room.ask(Asking(), 2 * MIB // 2, 0)
        assert room.ask(Asking(), 64 << 10, 0)

    run(test())


def test_a_frame_that_is_larger_than_all_room_is_received_alone() -> None:
    async def test() -> None:
        room = FrameRoom(Limits(held=MIB))
        assert room.ask(Asking(), 16 * MIB, 0)
        assert not room.ask(Asking(), 2 * MIB, 0)

    run(test())


def test_reads_become_smaller_as_room_does() -> None:
    async def test() -> None:
        room = FrameRoom(Limits(held=64 * MIB))
        assert room.next_read == READ_BYTES
        held = 0
        while room.next_read > SMALL:
            room.hold(1, room.next_read)
            held += room.next_read
            assert room.used < 64 * MIB
        room.give_back(1, room.used)
        assert room.next_read == READ_BYTES

    run(test())


def test_reads_become_smaller_in_a_turn_that_has_read_much() -> None:
    async def test() -> None:
        room = FrameRoom(Limits())
        reads = 0
        for _ in range(200):  # connections, of which each has as much as a read takes
            reads += room.next_read
            room.was_read(room.next_read)
        assert reads <= 2 * MIB
        assert room.next_read == SMALL
        await asyncio.sleep(0)
        assert room.next_read == READ_BYTES

    run(test())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3 * SMALL), max_size=6),
    st.binary(max_size=30),
    st.integers(1, 10_000),
    st.booleans(),
)
def test_frames_are_found_as_in_one_piece(
    sizes: list[int], rest: bytes, piece: int, grants_at_once: bool
) -> None:
    """The commands, and whether what follows is wrong, as FrameReader has them."""
    stream = b"".join(encode_frame(Command(n, body=bytes(size))) for n, size in enumerate(sizes))
    stream += rest
    expected, wrong = FrameReader().feed(stream)

    async def test() -> None:
        room = FrameRoom(Limits())
        blocker = Asking()
        asker = Asking()
        inbox = FrameInbox(asker, room, Scratch(), 1 << 24)
        found: list[Command] = []
        error: FrameError | None = None
        left = stream
        while left and error is None:
            full = 0
            if not grants_at_once:
                full = 16 * MIB
                assert room.ask(blocker, 60_000, 0)
                room.hold(60_000, full)
            buffer = inbox.buffer()
            count = min(len(buffer), piece, len(left))
            buffer[:count] = left[:count]
            left = left[count:]
            commands, error = inbox.received(count)
            found += commands
            waited = bool(inbox.wanted)
            if full:
                room.ended(blocker, 60_000)
                room.give_back(60_000, full + 60_000)
            if waited:
                assert asker.granted.pop() == inbox.wanted
                inbox.granted(inbox.wanted)
        assert found == expected
        assert (error is None) == (wrong is None)
        for command in found:
            if command.size > SMALL:
                room.give_back(command.size, command.size)
        inbox.close()

    run(test())


@pytest.mark.parametrize("is_granted", [True, False])
def test_a_connection_that_goes_gives_its_room_back(is_granted: bool) -> None:
    async def test() -> None:
        room = FrameRoom(Limits(held=HELD))
        blocker = Asking()
        if not is_granted:
            assert room.ask(blocker, 3 * MIB, 0)
        before = room.used
        inbox = FrameInbox(Asking(), room, Scratch(), 1 << 24)
        data = request(ECHO, bytes(2 * MIB))[:50_000]
        buffer = inbox.buffer()
        buffer[: len(data)] = data
        assert inbox.received(len(data)) == ([], None)
        assert bool(inbox.wanted) is not is_granted
        assert room.used > before
        inbox.close()
        assert room.used == before
        assert inbox.held == 0

    run(test())
