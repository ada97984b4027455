"""The live feed: what a page that stays open gets to hear."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from time import sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.dashboard import live
from gpuyard.dashboard.live import LiveFeed
from gpuyard.dashboard.live_map import LiveMap
from gpuyard.dashboard.sources import Sources
from gpuyard.inventory.controllers.cache import InventoryCache, InventoryView
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.runtime.control_loops import Driver
from tests.support.inventories import GPUS, HELD, LONE, NOON, STATUSES, changed, driver, filled

Stream = AsyncGenerator[bytes, None]


def feed(inventory: InventoryCache | None = None, loops: Driver | None = None) -> LiveFeed:
    return LiveFeed(
        Sources(
            inventory=inventory or filled(), driver=loops or driver(), site_name="test", gpus=GPUS, now=lambda: NOON
        )
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_EVERY", 0.005)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(limited())


def events(block: bytes) -> list[dict[str, str]]:
    """What a browser makes of a block: fields by name, lines of data joined."""
    parsed_events = []
    for part in block.decode().strip("\n").split("\n\n"):
        fields: dict[str, str] = {}
        for line in part.split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value
        parsed_events.append(fields)
    return parsed_events


async def told(stream: Stream) -> dict[str, str]:
    """The next event."""
    (event,) = events(await anext(stream))
    return event


async def opened(stream: Stream) -> dict[str, dict[str, str]]:
    """The first events of a stream by their kind, after nothing and the line that says when to come back."""
    assert await anext(stream) == b""
    assert await told(stream) == {"retry": str(live.RETRY)}
    first = [await told(stream), await told(stream)]
    return {event["event"]: event for event in first}


def test_a_new_page_gets_what_is_known_at_once() -> None:
    async def test() -> None:
        async with aclosing(feed().stream()) as stream:
            first = await opened(stream)
            assert first["map"]["id"].endswith("-1")
            assert 'data-generation="1"' in first["map"]["data"]
            assert first["map"]["data"].startswith('<div id="map"')
            assert "12:03:10 UTC" in first["pulse"]["data"]

    run(test)


def parts(event: dict[str, str]) -> list[str]:
    """Ids of the parts of the map that an event replaces."""
    assert event["event"] == "parts"
    return re.findall(r' id="([^"]*)" data-part', event["data"])


LONE_PARTS = ["pool-v100", "host-epyc-top", "gpu-epyc-0000:44:00.0"]
HELD_PARTS = ["pool-t4", "host-node10-top", "gpu-node10-0000:3b:00.0"]


def test_of_a_change_only_the_parts_are_told_that_it_changes() -> None:
    inventory = filled()

    async def test() -> None:
        async with aclosing(feed(inventory).stream()) as stream:
            await opened(stream)
            inventory.publish(NOON, changed(LONE, GpuState.HELD, "scrub now"))
            event = await told(stream)
            assert parts(event) == LONE_PARTS
            assert event["id"].endswith("-2")
            assert 'data-generation="2"' in event["data"]
            assert "scrub now" in event["data"]

    run(test)


def test_a_page_that_shows_the_map_gets_what_it_lacks() -> None:
    """Also one that was made long ago, and one whose line was cut."""
    inventory = filled()
    subject = feed(inventory)

    async def test() -> None:
        nothing = subject.version
        async with aclosing(subject.stream()) as stream:
            await opened(stream)
            first = subject.version
            inventory.publish(NOON, changed(LONE, GpuState.HELD))
            second = (await told(stream))["id"]
            inventory.publish(
                NOON, [replace(status, state=GpuState.FREE) if status.gpu == HELD else status for status in STATUSES]
            )
            third = (await told(stream))["id"]
            assert [first, second, third] == [f"{nothing[:-2]}-{version}" for version in (1, 2, 3)]
            both = ["pool-v100", "pool-t4", *LONE_PARTS[1:2], *HELD_PARTS[1:2], *LONE_PARTS[2:], *HELD_PARTS[2:]]
            for last_event_id, lacks in ((first, sorted(both)), (second, sorted(both)), (third, None)):
                async with aclosing(subject.stream(last_event_id=last_event_id)) as again:
                    await anext(again), await anext(again)
                    event = await told(again)
                    assert event["event"] == "pulse" if lacks is None else sorted(parts(event)) == lacks
            for last_event_id in (nothing, "00000000-2", "2", f"{first}0000000000000000", f"{first}\n", "x" * 99):
                async with aclosing(subject.stream(last_event_id=last_event_id)) as again:
                    assert "map" in await opened(again)

    run(test)


def test_other_gpus_are_another_map() -> None:
    inventory = filled()

    async def test() -> None:
        async with aclosing(feed(inventory).stream()) as stream:
            await opened(stream)
            inventory.publish(NOON, STATUSES[1:])
            assert (await told(stream))["event"] == "map"

    run(test)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from(GpuState), min_size=len(GPUS), max_size=len(GPUS)), min_size=2, max_size=6),
    st.data(),
)
def test_parts_make_of_any_map_the_newest(states: list[list[GpuState]], data: st.DataObject) -> None:
    shown, pages = LiveMap(), {}
    for generation, row in enumerate(states):
        marks = data.draw(st.dictionaries(st.sampled_from([(HELD.host, HELD.address)]), st.sampled_from(["", "bad"])))
        statuses = tuple(GpuStatus(gpu, state) for gpu, state in zip(GPUS, row, strict=True))
        shown = shown.after(InventoryView(generation, NOON, statuses), marks)
        pages[shown.version] = pieces(shown.since(-1, NOON)[1])
    assert {len(page) for page in pages.values()} == {
        len(GPUS) + len(("epyc", "node10", "node2")) + len(("v100", "t4"))
    }
    for version, page in pages.items():
        kind, html = shown.since(version, NOON)
        assert kind == "parts"
        assert page | pieces(html) == pages[shown.version]


def pieces(html: str) -> dict[str, str]:
    """Id of each part of the map -> its HTML."""
    matches = re.findall(r'<(\w+)([^>]*? id="([^"]*)" data-part.*?)\n *</\1>', html, re.DOTALL)
    return {id: re.sub(r"\n\s*", "\n", text) for _, text, id in matches}


async def after_turns(inventory: InventoryCache, turns: int) -> LiveFeed:
    """A feed whose map has changed that often, a GPU at a time, and of which no page is open."""
    subject = feed(inventory)
    for number in range(turns):
        inventory.publish(NOON, changed(LONE, GpuState.HELD, f"scrub {number}"))
        await subject._look()
    return subject


async def kind_for(subject: LiveFeed, version: int, hidden: bool = False) -> str:
    """What a new page gets that says which version it shows: the map, or parts."""
    async with aclosing(subject.stream((), hidden, f"{subject.version[:8]}-{version}")) as stream:
        await anext(stream), await anext(stream)
        return (await told(stream))["event"]


def count_drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The turns from which on something is drawn, as it is."""
    drawn, original = list[int](), LiveMap.since

    def counted(shown: LiveMap, version: int, now: datetime) -> tuple[str, str]:
        drawn.append(version)
        return original(shown, version, now)

    monkeypatch.setattr(LiveMap, "since", counted)
    return drawn


def test_of_turns_that_are_long_gone_the_whole_map_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = count_drawn(monkeypatch)

    async def test() -> None:
        subject = await after_turns(InventoryCache(), live.MOST_BEHIND + 21)
        for version in range(21):
            assert await kind_for(subject, version) == "map"
        assert drawn == [live.NOTHING]
        assert await kind_for(subject, 21) == "parts"

    run(test)


def test_of_turns_with_other_gpus_the_whole_map_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, inventory = count_drawn(monkeypatch), InventoryCache()

    async def test() -> None:
        subject = await after_turns(inventory, 10)
        inventory.publish(NOON, STATUSES[1:])
        await subject._look()
        assert [await kind_for(subject, version) for version in range(11)] == ["map"] * 11
        assert drawn == [live.NOTHING]

    run(test)


def test_there_is_an_end_to_what_is_drawn_and_kept_of_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, inventory = count_drawn(monkeypatch), InventoryCache()

    async def test() -> None:
        subject = await after_turns(inventory, 21)
        for hidden in (False, True):
            kinds = [await kind_for(subject, version, hidden) for version in range(1, 21) for _ in range(2)]
            assert kinds == ["parts"] * 2 * live.MOST_DRAWN + ["map"] * (38 - 2 * live.MOST_DRAWN) + ["parts"] * 2
            assert len(drawn) == len(set(drawn)) == live.MOST_DRAWN + 2, "the one before is drawn in any case"
            drawn.clear()
        assert len(subject._drawn) == 2 * (live.MOST_DRAWN + 2)
        inventory.publish(NOON, STATUSES)
        await subject._look()
        assert [await kind_for(subject, version) for version in (1, 21)] == ["parts"] * 2
        assert len(subject._drawn) == 2, "nothing of the turn before is kept"

    run(test)


def test_a_look_without_a_change_only_moves_the_time() -> None:
    inventory = filled()

    async def test() -> None:
        async with aclosing(feed(inventory).stream()) as stream:
            await opened(stream)
            inventory.publish(NOON.replace(second=20), STATUSES)
            event = await told(stream)
            assert event["event"] == "pulse"
            assert "12:03:20 UTC" in event["data"]

    run(test)


def test_trouble_is_told() -> None:
    loops = driver()

    async def test() -> None:
        async with aclosing(feed(loops=loops).stream()) as stream:
            await opened(stream)
            loops.loops[0]._run = lambda: (_ for _ in ()).throw(ConnectionError("refused"))
            loops.loops[0].run_once("timer")
            event = await told(stream)
            assert event["event"] == "pulse"
            assert "ConnectionError: refused" in event["data"]

    run(test)


def test_before_the_first_look_there_is_no_map_and_then_there_is() -> None:
    inventory = InventoryCache()

    async def test() -> None:
        async with aclosing(feed(inventory, driver(runs=0)).stream()) as stream:
            assert await anext(stream) == b""
            assert "retry" in await told(stream)
            assert (await told(stream))["event"] == "pulse"
            inventory.publish(NOON, STATUSES)
            assert (await told(stream))["event"] == "map"

    run(test)


def test_a_page_that_reads_slowly_gets_the_newest_only() -> None:
    inventory = filled()

    async def test() -> None:
        async with aclosing(feed(inventory).stream()) as slow:
            await opened(slow)
            for state in (GpuState.FREE, GpuState.HELD, GpuState.BOOKED):
                inventory.publish(NOON, changed(HELD, state))
                await asyncio.sleep(0.05)
            event = await told(slow)
            assert event["id"].endswith("-4")
            assert parts(event) == HELD_PARTS

    run(test)


def test_silence_is_broken_by_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT", 0.02)

    async def test() -> None:
        async with aclosing(feed().stream()) as stream:
            await opened(stream)
            for _ in range(3):
                comment, pulse = events(await anext(stream))
                assert comment == {"": "heartbeat"}
                assert pulse["event"] == "pulse"

    run(test)


def test_many_pages_share_one_task_and_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory, original = filled(), LiveMap.since
    rendered: list[int] = []

    def counted(shown: LiveMap, version: int, now: datetime) -> tuple[str, str]:
        rendered.append(shown.version)
        return original(shown, version, now)

    monkeypatch.setattr(LiveMap, "since", counted)

    async def test() -> None:
        subject = feed(inventory)
        before = len(asyncio.all_tasks())
        streams = [subject.stream() for _ in range(100)]
        for stream in streams:
            await opened(stream)
        assert len(asyncio.all_tasks()) == before + 1
        inventory.publish(NOON, changed(LONE, GpuState.HELD))
        blocks = [await anext(stream) for stream in streams]
        assert all(block is blocks[0] or block == blocks[0] for block in blocks)
        for stream in streams:
            await stream.aclose()

    run(test)
    assert rendered == [1, 2]


def test_the_task_ends_with_the_last_page_and_begins_again_with_the_next() -> None:
    inventory = filled()

    async def test() -> None:
        subject, before = feed(inventory), len(asyncio.all_tasks())
        for generation in ("1", "2"):
            async with aclosing(subject.stream()) as stream:
                assert (await opened(stream))["map"]["id"][
                    9:
                ] == generation  # never one that is older than the page itself
                assert subject.streams == 1
            await asyncio.sleep(0.05)
            assert (subject.streams, len(asyncio.all_tasks())) == (0, before)
            inventory.publish(NOON, changed(LONE, GpuState.HELD))

    run(test)


def test_closing_ends_every_stream_at_once() -> None:
    async def test() -> None:
        subject = feed()
        streams = [subject.stream() for _ in range(3)]
        for stream in streams:
            await opened(stream)
        waiting = [asyncio.ensure_future(anext(stream, b"end")) for stream in streams]
        await asyncio.sleep(0.02)
        subject.close()
        assert await asyncio.gather(*waiting) == [b"end"] * 3
        assert subject.streams == 0

    run(test)


def test_a_map_that_cannot_be_rendered_does_not_end_the_feed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inventory, original = filled(), LiveMap.since

    def fails_at_first(shown: LiveMap, version: int, now: datetime) -> tuple[str, str]:
        if shown.version == 1:
            raise ValueError("a bug")
        return original(shown, version, now)

    monkeypatch.setattr(LiveMap, "since", fails_at_first)

    async def test() -> None:
        async with aclosing(feed(inventory).stream()) as stream:
            assert await anext(stream) == b""
            assert "retry" in await told(stream)
            assert (await told(stream))["event"] == "pulse"
            await asyncio.sleep(0.05)
            inventory.publish(NOON, changed(LONE, GpuState.HELD))
            event = await told(stream)
            assert (event["event"], event["id"][9:]) == ("map", "2")

    run(test)
    assert caplog.text.count("version 1 of the map could not be drawn") == 1


def test_a_page_that_goes_while_its_map_is_drawn_takes_it_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LiveMap.since

    def slow(shown: LiveMap, version: int, now: datetime) -> tuple[str, str]:
        sleep(0.1)
        return original(shown, version, now)

    monkeypatch.setattr(LiveMap, "since", slow)

    async def test() -> None:
        subject = feed()
        impatient = asyncio.ensure_future(anext(subject.stream()))
        await asyncio.sleep(0.05)
        impatient.cancel()
        async with aclosing(subject.stream()) as stream:
            assert (await opened(stream))["map"]["id"][9:] == "1"

    run(test)


def test_a_large_map_is_handed_over_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PIECE", 1000)

    async def test() -> None:
        async with aclosing(feed().stream()) as stream:
            assert await anext(stream) == b""
            assert "retry" in await told(stream)
            heard = b""
            while b"event: pulse" not in heard:
                piece = await anext(stream)
                assert len(piece) <= 1000
                heard += piece
            assert events(heard)[0]["data"].endswith("</div>")

    run(test)


def test_there_is_an_end_to_how_many_pages_can_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 1)

    async def test() -> None:
        subject = feed()
        assert not subject.full
        async with aclosing(subject.stream()) as stream:
            await opened(stream)
            assert subject.full
        assert not subject.full

    run(test)
