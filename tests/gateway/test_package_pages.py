"""A page of a registry is read once for all who ask by the same rule, and never for longer than it holds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.gateway.package_scene import PAGE, Scene, play
from tests.gateway.registry_files import world_of

INDEX = "index.test/simple/demo/"


class Clock:
    """Of what the gateway remembers of pages."""

    def __init__(self, scene: Scene) -> None:
        assert scene.world.packages is not None
        self.now = time.time()
        scene.world.packages.clock = lambda: self.now


def test_a_page_that_was_just_read_is_not_asked_for_again_but_by_the_same_rule_only(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        accept = "Accept: application/vnd.pypi.simple.v1+json"
        first = await scene.one.fetch("index.test", PAGE, accept)
        two = await scene.another()
        assert await two.fetch("index.test", PAGE, accept) == first
        assert first[0] == 200
        assert scene.upstream.asked.count(INDEX) == 1
        assert scene.world.audit_log.caches == ["page"]
        assert (await two.file())[0] == 200  # it has led there
        assert b"text/html" not in first[1]
        strict = await scene.another(world_of(", cooldown_days: 7").policy, "sb_3")
        status, body = await strict.fetch("index.test", PAGE, accept)
        assert status == 200
        assert body != first[1]
        assert scene.upstream.asked.count(INDEX) == 2
        assert (await strict.fetch("files.test", "/p/demo-2.0-py3-none-any.whl"))[0] == 403

    play(tmp_path, work, pages="")


def test_later_the_index_is_asked_whether_it_is_still_the_same(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        clock = Clock(scene)
        first = await scene.one.fetch("index.test", PAGE)
        clock.now += 61
        assert await scene.one.fetch("index.test", PAGE) == first
        assert scene.upstream.asked.count(INDEX) == 2
        assert scene.world.audit_log.caches == ["page"]
        clock.now += 61
        scene.upstream.answers[INDEX] = ("text/html", b'<a href="https://files.test/p/demo-3.0.zip">demo-3.0.zip</a>')
        scene.upstream.etag = '"2"'
        assert b"demo-3.0.zip" in (await scene.one.fetch("index.test", PAGE))[1]
        clock.now -= 3600  # a clock that was put back makes nothing fresh
        await scene.one.fetch("index.test", PAGE)
        assert scene.upstream.asked.count(INDEX) == 4

    play(tmp_path, work, pages="")


def test_a_cooldown_is_not_judged_by_what_was_read_long_ago(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        clock = Clock(scene)
        assert await scene.one.page() == 200
        for passed in (61, 540):
            clock.now += passed
            assert await scene.one.page() == 200
        assert scene.world.audit_log.caches == ["page"]

    play(tmp_path, work, ", cooldown_days: 7", pages="")


def test_what_is_somebody_s_page_is_nobody_else_s_and_others_are_asked_for_in_the_gateway_s_words(
    tmp_path: Path,
) -> None:
    async def work(scene: Scene) -> None:
        two = await scene.another()
        for inside in (scene.one, two):
            assert (await inside.fetch("index.test", PAGE, "Authorization: Basic YTpi", "X-Mine: 1"))[0] == 200
        assert (scene.upstream.asked.count(INDEX), scene.kept) == (2, [])
        assert b"X-Mine" not in scene.upstream.heads[-1]
        assert (await two.fetch("index.test", PAGE, "X-Forwarded-Host: evil.test", "User-Agent: evil"))[0] == 200
        assert b"evil" not in scene.upstream.heads[-1]

    play(tmp_path, work, pages="")


@pytest.mark.parametrize("control", ["no-store", "private", "no-cache", "max-age=0"])
def test_what_an_index_says_of_how_long_its_page_holds_is_heeded(control: str, tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.upstream.more = f"Cache-Control: {control}\r\n"
        for _ in range(2):
            assert await scene.one.page() == 200
        assert scene.upstream.asked.count(INDEX) == 2

    play(tmp_path, work, pages="")


def test_a_page_that_changed_on_the_disk_is_read_anew(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        assert await scene.one.page() == 200
        for path in scene.kept:
            path.write_bytes(path.read_bytes().replace(b"demo-1.0", b"demo-6.6"))
        status, body = await scene.one.fetch("index.test", PAGE, "Accept: application/vnd.pypi.simple.v1+json")
        assert status == 200
        assert b"demo-6.6" not in body
        assert scene.upstream.asked.count(INDEX) == 2

    play(tmp_path, work, pages="")
