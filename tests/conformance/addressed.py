"""Clauses on addressed messages: order, keys, contents, and where the bytes come to rest."""

import asyncio

import numpy as np
import pytest

from tests.conformance.neighbours import LARGE, SMALL, filled, left_of, right_of, same, sending, wait_for_all
from transports import Block, WireError
from transports.wire.arrays import SIZES


async def messages_with_one_key_arrive_in_order(end):
    sizes = [SMALL, LARGE, 0, SMALL, LARGE, LARGE, SMALL] * 5
    sends = [end.send(right_of(end), ("k",), filled(end.rank, size, n), note=n) for n, size in enumerate(sizes)]
    async with sending(*sends):
        for n, size in enumerate(sizes):
            message = await end.receive(left_of(end), ("k",))
            assert message.note == n
            assert same(message.blocks[0], filled(left_of(end), size, n))


async def a_receive_may_be_posted_before_its_message(end):
    for size in (SMALL, LARGE):
        receive = asyncio.ensure_future(end.receive(left_of(end), ("early", size)))
        await wait_for_all(end, size)
        await asyncio.gather(end.send(right_of(end), ("early", size), filled(end.rank, size)), receive)
        assert same(receive.result().blocks[0], filled(left_of(end), size))


async def a_message_waits_for_its_receive(end):
    for size in (SMALL, LARGE):
        async with sending(end.send(right_of(end), ("late", size), filled(end.rank, size))):
            await wait_for_all(end, size)
            message = await end.receive(left_of(end), ("late", size))
        assert same(message.blocks[0], filled(left_of(end), size))


async def probe_reports_arrival(end):
    async with sending(end.send(right_of(end), ("come",)), end.send(right_of(end), ("after",))):
        await end.receive(left_of(end), ("after",))
        assert end.probe(None, ("come",)) and not end.probe(right_of(end), ("other",))
        await end.receive(None, ("come",))
    assert not end.probe(None, ("come",))
    await wait_for_all(end, "over")


async def keys_may_be_received_in_any_order(end):
    sends = [end.send(right_of(end), (n, "x"), filled(end.rank, SMALL + n % 2 * LARGE, n)) for n in range(20)]
    async with sending(*sends):
        for n in reversed(range(20)):
            message = await end.receive(left_of(end), (n, "x"))
            assert same(message.blocks[0], filled(left_of(end), SMALL + n % 2 * LARGE, n))


async def keys_and_notes_survive_the_round_trip(end):
    key = (0, -1, 2**63 - 1, -(2**63), "", "activation", "ünï\0", *range(9))
    note = {"a": [1, 2.5, None, True], "b": {"c": b"bytes"}, 3: "three"}
    async with sending(end.send(right_of(end), key, note=note), end.send(right_of(end), ())):
        message = await end.receive(left_of(end), key)
        assert (message.source, message.key, message.note, message.blocks) == (left_of(end), key, note, ())
        assert (await end.receive(left_of(end), ())).note is None


async def a_note_that_no_receiver_can_read_is_refused_at_its_sender(end):
    """A tuple becomes a list on the wire, and a list is no key of a map."""
    for note in ({(1, 2): 3}, [1, ({"a": {(): None}},)]):
        with pytest.raises(WireError, match="a map in a note may not have a list or tuple as a key"):
            await end.send(right_of(end), ("note",), note=note)
    async with sending(end.send(right_of(end), ("note",), note={"a": [(1, 2)]})):
        assert (await end.receive(left_of(end), ("note",))).note == {"a": [[1, 2]]}


async def a_list_is_a_key_as_a_tuple_is(end):
    async with sending(end.send(right_of(end), ["k", 1])):
        assert (await end.receive(left_of(end), ["k", 1])).key == ("k", 1)
    assert not end.probe(left_of(end), ["k", 1])


async def every_dtype_comes_as_it_went(end):
    rng = np.random.default_rng(5)
    for items in (7, LARGE):
        blocks = [Block(name, (items,), memoryview(rng.bytes(items * size))) for name, size in SIZES.items()]
        async with sending(end.send(right_of(end), ("dtypes", items), *blocks)):
            message = await end.receive(left_of(end), ("dtypes", items))
        assert [(block.dtype, block.shape, bytes(block.data)) for block in message.blocks] == [
            (block.dtype, block.shape, bytes(block.data)) for block in blocks
        ]


async def shapes_come_as_they_went_zeros_included(end):
    shapes = [(), (0,), (3, 0, 2), (1,) * 16, (2, 3, 4, 5), (LARGE, 2), (0,)]
    arrays = [np.full(shape, end.rank + n, np.int32) for n, shape in enumerate(shapes)]
    async with sending(end.send(right_of(end), ("shapes",), *arrays)):
        message = await end.receive(left_of(end), ("shapes",))
    assert len(message.blocks) == len(shapes)
    for n, (block, shape) in enumerate(zip(message.blocks, shapes, strict=True)):
        assert same(block, np.full(shape, left_of(end) + n, np.int32))


async def sixty_four_blocks_fit_in_a_message_and_no_more(end):
    arrays = [filled(end.rank, n) for n in range(64)]
    with pytest.raises(WireError, match=r"65.*64"):
        await end.send(right_of(end), ("many",), *arrays, arrays[0])
    async with sending(end.send(right_of(end), ("many",), *arrays)):
        message = await end.receive(left_of(end), ("many",))
    assert all(same(block, filled(left_of(end), n)) for n, block in enumerate(message.blocks))


async def arrays_with_strides_are_sent_complete(end):
    square = filled(end.rank, 1 << 14).reshape(128, 128)
    async with sending(end.send(right_of(end), ("gaps",), square.T, square[::2, 1::3], square[:4, 5:6])):
        message = await end.receive(left_of(end), ("gaps",))
    there = filled(left_of(end), 1 << 14).reshape(128, 128)
    for block, array in zip(message.blocks, (there.T, there[::2, 1::3], there[:4, 5:6]), strict=True):
        assert same(block, array)


async def bytes_come_to_rest_in_the_receivers_arrays(end):
    for size in (SMALL, LARGE):
        mine, flags = np.empty((size // 4, 4), np.float32), np.zeros(3, bool)
        arrays = filled(end.rank, size), np.array([True, False, True])
        async with sending(end.send(right_of(end), ("into", size), *arrays)):
            message = await end.receive(left_of(end), ("into", size), into=[mine, flags])
        assert mine.tobytes() == filled(left_of(end), size).tobytes()
        assert flags.tolist() == [True, False, True]
        assert np.shares_memory(message.blocks[0].numpy(), mine)
        assert message.blocks[0].shape == (size,)


async def received_memory_may_be_written_to(end):
    for size in (SMALL, LARGE):
        async with sending(end.send(right_of(end), ("own", size), filled(end.rank, size))):
            message = await end.receive(left_of(end), ("own", size))
        message.blocks[0].numpy()[:] = 0


async def arrays_that_do_not_fit_are_refused_and_the_message_stays(end):
    unfit = {
        "bytes": [np.empty(SMALL - 1, np.float32)],
        "arrays": [np.empty(SMALL, np.float32)] * 2,
        "contiguous": [np.empty((SMALL, 2), np.float32)[:, 0]],
        "read-only": [np.frombuffer(bytes(SMALL * 4), np.float32)],
    }
    async with sending(end.send(right_of(end), ("fit",), filled(end.rank, SMALL))):
        for why, into in unfit.items():
            with pytest.raises(ValueError, match=why):
                await end.receive(left_of(end), ("fit",), into=into)
        message = await end.receive(left_of(end), ("fit",))
    assert same(message.blocks[0], filled(left_of(end), SMALL))


async def a_receive_that_waited_with_an_unfit_array_leaves_the_message(end):
    for size in (SMALL, LARGE):
        unfit = asyncio.ensure_future(end.receive(left_of(end), ("unfit", size), into=[bytearray(1)]))
        await wait_for_all(end, size)
        async with sending(end.send(right_of(end), ("unfit", size), filled(end.rank, size))):
            with pytest.raises(ValueError, match="into"):
                await unfit
            message = await end.receive(left_of(end), ("unfit", size))
        assert same(message.blocks[0], filled(left_of(end), size))


async def a_receive_from_any_peer_gets_every_message(end):
    for size in (SMALL, LARGE):
        ranks = range(end.world_size)
        async with sending(*(end.send(rank, ("any", size), filled(end.rank, size)) for rank in ranks)):
            messages = [await end.receive(None, ("any", size)) for _ in ranks]
        assert sorted(message.source for message in messages) == list(ranks)
        assert all(same(message.blocks[0], filled(message.source, size)) for message in messages)
    await wait_for_all(end, "all ranks have received before any closes")


async def a_receive_from_anyone_may_wait_beside_others(end):
    receives = [asyncio.ensure_future(end.receive(peer, ("both",))) for peer in (None, left_of(end))]
    await wait_for_all(end, "both")
    sends = [end.send(right_of(end), ("both",), note=n) for n in range(2)]
    async with sending(*sends):
        assert [(await receive).note for receive in receives] == [0, 1]
    await wait_for_all(end, "all ranks have received before any closes")


async def a_rank_may_send_to_itself(end):
    for size in (0, SMALL, LARGE):
        into = [np.empty(size, np.float32)]
        async with sending(*(end.send(end.rank, ("self", size), filled(end.rank, size)) for _ in range(2))):
            messages = [await end.receive(end.rank, ("self", size)), await end.receive(end.rank, ("self", size), into)]
        assert all(same(message.blocks[0], filled(end.rank, size)) for message in messages)


async def a_note_to_oneself_is_copied_as_one_to_another_rank(end):
    note = {"numbers": [1], "pair": (1, 2)}
    async with sending(end.send(end.rank, ("self",), note=note)):
        await asyncio.sleep(0)
        note["numbers"].append(2)
        assert (await end.receive(end.rank, ("self",))).note == {"numbers": [1], "pair": [1, 2]}


async def many_messages_may_be_under_way_at_once(end):
    ranks, count = range(end.world_size), 400 // end.world_size
    sizes = [1 + n * 37 % 9000 for n in range(count)]

    async def exchange(peer, n):
        array = filled(end.rank, sizes[n], n)
        _, message = await asyncio.gather(end.send(peer, ("m", n), array), end.receive(peer, ("m", n)))
        assert same(message.blocks[0], filled(peer, sizes[n], n))

    async with asyncio.TaskGroup() as group:
        for n in sorted(range(count), key=lambda n: n * 7919 % count):
            for peer in ranks:
                group.create_task(exchange(peer, n))


async def a_message_of_256_mib_arrives_complete(end):
    big = 256 << 20
    if end.rank == 0:
        await end.send(1, ("big",), np.arange(big // 8))
    elif end.rank == 1:
        into = np.empty(big // 8, np.int64)
        await end.receive(0, ("big",), into=[into])
        assert (into == np.arange(big // 8)).all()


async def sent_arrays_may_be_reused_once_send_returns(end):
    for size in (SMALL, LARGE):
        array = filled(end.rank, size)

        async def send(array=array, size=size):
            await end.send(right_of(end), ("reuse", size), array)
            array[:] = -1

        async with sending(send()):
            await wait_for_all(end, size)
            message = await end.receive(left_of(end), ("reuse", size))
            assert same(message.blocks[0], filled(left_of(end), size))


async def what_the_wire_cannot_carry_fails_at_its_sender(end):
    unsendable = [
        ((True,), (), None),
        ((1.5,), (), None),
        (tuple(range(17)), (), None),
        (("k",), (), object()),
        (("k",), (), "x" * 70_000),
        (("k",), [np.array(["text"])], None),
        (("k",), [np.empty((1,) * 17)], None),
    ]
    for key, arrays, note in unsendable:
        with pytest.raises(WireError):
            await end.send(right_of(end), key, *arrays, note=note)
    await wait_for_all(end, "still works")


WITHOUT_WIRE_FORM = (
    np.array([None, "x"], object),
    np.zeros(2, "M8[s]"),
    np.array(["text"]),
    np.zeros(2, [("number", "i4"), ("thing", "O")]),
    np.zeros(2, np.longdouble),
)


async def a_dtype_without_a_wire_form_is_refused_both_ways_by_name(end):
    for array in WITHOUT_WIRE_FORM:
        with pytest.raises(WireError, match=r"dtype .* has no wire form; convert the array to one of bool, uint8"):
            await end.send(right_of(end), ("plain",), array)
        with pytest.raises(ValueError, match=r"into\[0\].*dtype .* has no wire form"):  # before any message is here
            await end.receive(left_of(end), ("plain",), into=[array])
    async with sending(end.send(right_of(end), ("plain",), filled(end.rank, SMALL))):
        assert same((await end.receive(left_of(end), ("plain",))).blocks[0], filled(left_of(end), SMALL))


async def an_array_of_another_byte_order_is_sent_in_this_machines_and_not_received_into(end):
    foreign = filled(end.rank, SMALL).astype(">f4")
    async with sending(end.send(right_of(end), ("order",), foreign)):
        with pytest.raises(ValueError, match=r"into\[0\].*byte order"):
            await end.receive(left_of(end), ("order",), into=[np.zeros(SMALL, ">f4")])
        assert same((await end.receive(left_of(end), ("order",))).blocks[0], filled(left_of(end), SMALL))


async def a_rank_that_is_not_in_the_world_is_named(end):
    for stranger in (-1, end.world_size):
        with pytest.raises(ValueError, match=rf"{stranger}.*{end.world_size}"):
            await end.send(stranger, ("k",))
        with pytest.raises(ValueError, match=rf"{stranger}.*{end.world_size}"):
            await end.receive(stranger, ("k",))


async def payload_is_counted_at_both_ends(end):
    arrays = [filled(end.rank, SMALL), filled(end.rank, LARGE), filled(end.rank, 0)]
    nbytes = 4 * (SMALL + LARGE)
    async with sending(end.send(right_of(end), ("count",), *arrays)):
        await end.receive(left_of(end), ("count",))
    traffic = end.traffic
    assert (traffic.messages_sent, traffic.bytes_sent) == (1, nbytes)
    assert (traffic.messages_received, traffic.bytes_received) == (1, nbytes)
    assert traffic.bytes_to == {right_of(end): nbytes}


async def the_last_key_heard_from_a_peer_is_known(end):
    for n in range(2):
        async with sending(end.send(right_of(end), ("step", n))):
            await end.receive(left_of(end), ("step", n))
    assert end.last_key(left_of(end)) == ("step", 1)
