"""The next sandbox gets from this machine what one sandbox has fetched of a registry: the same bytes, authorized again.

Neither a sandbox nor an upstream can put other bytes there.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from paddock.model.egress import Target
from tests.gateway.package_scene import FILE, LARGE, PLACE, RIGHT, Scene, play
from tests.gateway.registry_files import world_of
from tests.gateway.rig import eventually

# -- the second sandbox ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 70_000, 300_000])
def test_the_second_sandbox_has_the_bytes_of_the_first_and_nobody_outside_is_asked_again(
    size: int, tmp_path: Path
) -> None:
    async def work(scene: Scene) -> None:
        scene.upstream.becomes(LARGE[:size])
        assert await scene.one.install() == (200, LARGE[:size])
        await eventually(lambda: scene.kept)
        two = await scene.another()
        assert await two.install() == (200, LARGE[:size])
        assert scene.upstream.fetched == 1
        audit_log = scene.world.audit_log
        assert audit_log.caches == ["kept", "hit"]
        (file,) = set(audit_log.files)
        assert file[1] == f"sha256:{hashlib.sha256(LARGE[:size]).hexdigest()}", "both had it, and it is told which"
        hits = [(flow, verdict) for flow, verdict in audit_log.of("request") if flow.sandbox == "sb_2"]
        assert [verdict.allowed for _, verdict in hits] == [True, True]
        assert hits[1][1].revision == scene.world.policy.revision
        assert hits[1][0].host == "files.test"
        assert not [flow for flow, _ in audit_log.of("dial") if (flow.sandbox, flow.host) == ("sb_2", "files.test")]

    play(tmp_path, work)


def test_a_file_of_npm_is_kept_by_its_integrity(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        expected = scene.upstream.answers["npm.test/demo/-/demo-2.0.0.tgz"][1]
        for inside in (scene.one, await scene.another()):
            assert (await inside.fetch("npm.test", "/demo"))[0] == 200
            assert await inside.fetch("npm.test", "/demo/-/demo-2.0.0.tgz") == (200, expected)
        assert scene.upstream.asked.count("npm.test/demo/-/demo-2.0.0.tgz") == 1

    play(tmp_path, work)


def test_the_metadata_beside_a_wheel_is_kept_too(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        metadata = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
        scene.upstream.answers[PLACE + ".metadata"] = ("text/plain", metadata)
        scene.upstream.files[0]["core-metadata"] = {"sha256": hashlib.sha256(metadata).hexdigest()}
        for inside in (scene.one, await scene.another()):
            assert await inside.page() == 200
            assert await inside.fetch("files.test", FILE + ".metadata") == (200, metadata)
        assert scene.upstream.asked.count(PLACE + ".metadata") == 1

    play(tmp_path, work)


def test_what_was_kept_is_there_for_the_next_gateway(tmp_path: Path) -> None:
    async def first(scene: Scene) -> None:
        scene.upstream.becomes(RIGHT)
        assert (await scene.one.install())[0] == 200
        await eventually(lambda: scene.kept)

    async def second(scene: Scene) -> None:
        scene.upstream.becomes(RIGHT)
        assert await scene.one.install() == (200, RIGHT)
        assert scene.upstream.fetched == 0

    play(tmp_path, first)
    play(tmp_path, second)


def test_a_download_ends_with_who_asked_for_it_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.upstream.becomes(LARGE)
        cut = asyncio.Event()

        async def never(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE[:200_000])
            await writer.drain()
            while not writer.is_closing():
                await asyncio.sleep(0.01)
                writer.write(b"")
            cut.set()

        assert await scene.one.page() == 200
        scene.upstream.odd[PLACE] = never
        reader, writer = await scene.one.start("files.test", FILE)
        await reader.readuntil(b"\r\n\r\n")
        assert scene.drafts
        writer.transport.abort()
        await eventually(lambda: not scene.drafts)
        await asyncio.wait_for(cut.wait(), 60)
        assert not scene.kept

    play(tmp_path, work)


def test_two_who_fetch_the_same_at_once_both_have_it_and_it_is_kept_once(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.upstream.becomes(LARGE)
        two = await scene.another()
        go_on = asyncio.Event()

        async def slowly(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE[:200_000])
            await go_on.wait()
            writer.write(LARGE[200_000:])

        assert (await scene.one.page(), await two.page()) == (200, 200)
        scene.upstream.odd[PLACE] = slowly
        streams = [await inside.start("files.test", FILE) for inside in (scene.one, two)]
        for reader, _ in streams:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        go_on.set()
        for reader, writer in streams:
            assert await reader.readexactly(len(LARGE)) == LARGE
            writer.close()
        await eventually(lambda: len(scene.kept) == 1)
        await eventually(lambda: not scene.drafts)
        assert scene.store.total_bytes == scene.kept[0].stat().st_size

    play(tmp_path, work)


# -- poisoning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 300_000])
def test_an_upstream_with_other_bytes_than_its_page_says_is_neither_passed_on_nor_kept(
    size: int, tmp_path: Path
) -> None:
    async def work(scene: Scene) -> None:
        right = LARGE[:size]
        wrong = right[:-1] + bytes([right[-1] ^ 1])
        scene.upstream.becomes(right)
        assert await scene.one.page() == 200
        scene.upstream.answers[PLACE] = ("application/zip", wrong)
        status, body = await scene.one.file()
        assert status == (502 if size < 64_000 else 0)
        assert b"another digest" in body or not body
        await eventually(lambda: not scene.drafts)
        assert not scene.kept
        errors = [error for _, _, error in scene.world.audit_log.outcomes.values() if error]
        assert any("another digest" in error for error in errors)
        scene.upstream.answers[PLACE] = ("application/zip", right)
        assert await (await scene.another()).install() == (200, right)

    play(tmp_path, work)


def test_an_index_that_lies_about_another_s_file_changes_nothing_for_others(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        right = scene.upstream.answers[PLACE][1]
        lie = hashlib.sha256(b"lie").hexdigest()
        truth = scene.upstream.files[0]["hashes"]
        scene.upstream.files[0]["hashes"] = {"sha256": lie}
        assert (await scene.one.install())[0] == 502
        scene.upstream.files[0]["hashes"] = truth
        two, three = await scene.another(), await scene.another(sandbox="sb_3")
        assert await two.install() == (200, right)
        assert await three.install() == (200, right)
        assert (await scene.one.file())[0] == 502  # by what its own page said
        assert scene.world.audit_log.caches.count("hit") == 1

    play(tmp_path, work)


@pytest.mark.parametrize(
    "field",
    [
        "Range: bytes=0-3",
        'If-None-Match: "1"',
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
        "Authorization: Basic YTpi",
        "Cookie: a=b",
    ],
)
def test_who_asks_for_a_part_or_as_somebody_is_answered_by_the_upstream_and_nothing_is_kept(
    field: str, tmp_path: Path
) -> None:
    async def work(scene: Scene) -> None:
        assert await scene.one.page() == 200
        reader, writer = await scene.one.start("files.test", FILE, field)
        assert b"HTTP/1.1 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert (scene.kept, scene.drafts, scene.world.audit_log.caches) == ([], [], [])
        assert (await scene.one.file())[0] == 200
        await eventually(lambda: scene.kept)
        reader, writer = await scene.one.start("files.test", FILE, field)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert scene.upstream.fetched == 3

    play(tmp_path, work)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(RIGHT) + RIGHT[:-1],
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + RIGHT,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Encoding: gzip\r\n\r\n" % len(RIGHT) + RIGHT,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nCache-Control: private\r\n\r\n" % len(RIGHT) + RIGHT,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nSet-Cookie: a=b\r\n\r\n" % len(RIGHT) + RIGHT,
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % len(RIGHT) + RIGHT,
        b"HTTP/1.1 302 Found\r\nLocation: https://evil.test/x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
    ],
)
def test_an_answer_that_is_not_all_of_the_file_is_not_kept(answer: bytes, tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        async def odd(writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await writer.drain()

        scene.upstream.becomes(RIGHT)
        assert await scene.one.page() == 200
        scene.upstream.odd[PLACE] = odd
        reader, writer = await scene.one.start("files.test", FILE)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        writer.close()
        await eventually(lambda: len(scene.world.audit_log.caches) == 1)
        await eventually(lambda: not scene.drafts)
        assert not scene.kept
        assert scene.world.resolved.count("evil.test") == 0

    play(tmp_path, work)


@pytest.mark.parametrize("place", [0, 100, -1])
@pytest.mark.parametrize("size", [1000, 300_000])
def test_a_file_that_changed_on_the_disk_is_not_given_out_to_its_end_and_fetched_anew(
    place: int, size: int, tmp_path: Path
) -> None:
    async def work(scene: Scene) -> None:
        scene.upstream.becomes(LARGE[:size])
        assert (await scene.one.install())[0] == 200
        await eventually(lambda: scene.kept)
        path = scene.kept[0]
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        found = await scene.one.file()
        if found != (200, LARGE[:size]):
            assert found == (0, b"")
            assert size > 64_000  # a part was out already
            found = await scene.one.file()
        assert found == (200, LARGE[:size])
        assert scene.upstream.fetched == 2

    play(tmp_path, work)


# -- policy first ------------------------------------------------------------------------------------------------------


def test_what_a_policy_holds_back_is_not_had_from_the_cache(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        young = "/p/demo-2.0-py3-none-any.whl"
        assert await scene.one.page() == 200
        assert (await scene.one.fetch("files.test", young))[0] == 200
        await eventually(lambda: scene.kept)
        strict, other = world_of(", cooldown_days: 7").policy, world_of(", packages: [other]").policy
        two = await scene.another(strict)
        assert (await two.fetch("files.test", young))[0] == 403
        assert await two.page() == 200
        assert (await two.fetch("files.test", young))[0] == 403
        three = await scene.another(other, "sb_3")
        assert (await three.fetch("files.test", young))[0] == 403
        await scene.world.gateway.networks["sb_1"].revise(strict)
        assert (await scene.one.fetch("files.test", young))[0] == 403
        assert scene.world.audit_log.caches == ["kept"]

    play(tmp_path, work)


def test_what_came_from_an_address_that_a_policy_refuses_is_not_had_from_the_cache(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        assert (await scene.one.install())[0] == 200
        await eventually(lambda: scene.kept)
        two = await scene.another()
        assert await two.page() == 200
        room = scene.world.gateway.networks["sb_2"]
        policy: Any = room.policy
        address = policy.address

        def not_files(target: Target, given: str, **own: Any) -> Any:
            verdict = address(target, given, **own)
            refused = type(verdict)(allowed=False, rule="x", reason="x", revision=verdict.revision)
            return refused if target.host == "files.test" else verdict

        class Other:
            def __getattr__(self, name: str) -> Any:
                return not_files if name == "address" else getattr(policy, name)

        other: Any = Other()
        room.policy = other
        assert (await two.file())[0] == 403
        assert "hit" not in scene.world.audit_log.caches

    play(tmp_path, work)


def test_a_revision_cuts_who_reads_what_it_holds_back(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.upstream.becomes(LARGE)

        async def slowly(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE[:200_000])
            await asyncio.sleep(3600)

        assert await scene.one.page() == 200
        scene.upstream.odd[PLACE] = slowly
        reader, _ = await scene.one.start("files.test", FILE)
        await reader.readuntil(b"\r\n\r\n")
        other: Any = world_of(", packages: [other]").policy
        await scene.world.gateway.networks["sb_1"].revise(other)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(len(LARGE)), 60)
        await eventually(lambda: not scene.drafts)
        assert not scene.kept

    play(tmp_path, work)


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_without_room_a_file_passes_and_the_record_says_so(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        for _ in range(2):
            assert await scene.one.install() == (200, scene.upstream.answers[PLACE][1])
        assert scene.world.audit_log.caches == ["not kept: the disk is too full for a cache"] * 2
        assert (scene.kept, scene.drafts) == ([], [])

    play(tmp_path, work, spare_bytes=1 << 60)
