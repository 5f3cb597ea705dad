"""Images in a pool: found by what they are called, verified, unpacked once, shared, removed."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import (
    ImageInvalidError,
    InvalidArgumentError,
    NotFoundError,
    PaddockError,
    ResourceExhaustedError,
    UnsupportedError,
)
from paddock.model import User
from paddock.storage import Pool
from paddock.storage.templates.images import ImageLimits, Images
from paddock.storage.templates.images._documents import (
    Config,
    Manifest,
    SavedImage,
    decode,
    decode_config,
    decode_index,
)
from paddock.storage.templates.images._images import Record
from paddock.storage.templates.images._reference import parse
from paddock.wire import tar
from tests.conformance.trees import Root
from tests.images.layouts import (
    GROUP,
    PASSWD,
    LayoutWriter,
    archived,
    digest,
    directory,
    encoded,
    hard,
    layer,
    link,
    member,
    write_layout,
)
from tests.orphans import descriptors, wait_until
from tests.storage.faults import killed_before_step

BASE = layer(directory("etc"), member("etc/passwd", PASSWD), member("etc/group", GROUP), member("base", b"base"))
UPPER = layer(member("upper", b"upper"), member(".wh.base"))


def silent(_: str) -> None: ...


@pytest.fixture
def images(pool: Pool, tmp_path: Path) -> Images:
    return Images(pool, tmp_path / "state", clock=lambda: 5.0)


def get(images: Images, reference: str) -> Record:
    return images.get(reference, silent)


def test_an_image_becomes_one_whole_tree_with_what_a_sandbox_needs(images: Images, pool: Pool, tmp_path: Path) -> None:
    record = get(images, write_layout(tmp_path / "layout", BASE, UPPER, link_layer()))
    (name,) = record.template.layers
    with Root(pool, name) as root:
        assert (root / "upper").read_bytes() == b"upper"
        assert not (root / "base").exists()
        for path in ("dev", "proc", "sys", "tmp", "run", "workspace", "root"):
            assert stat.S_ISDIR((root / path).lstat().st_mode), path
        assert (root / "etc/hosts").read_text().startswith("127.0.0.1\tlocalhost")
        assert (root / "etc/resolv.conf").read_bytes() == b""
        assert not (root / "etc/resolv.conf").is_symlink()
    assert not record.template.host_usr
    assert images.list() == (record.image,)


def link_layer() -> bytes:
    """What stands where a sandbox has its own."""
    return layer(
        link("tmp", "/var/tmp"),
        link("proc", ".."),
        member("dev", b"no directory"),
        link("etc/resolv.conf", "../../../../etc/shadow"),
        directory("etc/hosts"),
        member("etc/hosts/x"),
    )


@pytest.mark.parametrize("compression", ["", "+gzip", "+zstd"])
def test_the_same_image_from_every_place_is_the_same_tree(
    images: Images, pool: Pool, tmp_path: Path, compression: str
) -> None:
    layout = write_layout(tmp_path / "layout", BASE, UPPER, compression=compression)
    first = get(images, layout)
    second = get(images, archived(tmp_path / "layout", tmp_path / "layout.tar"))
    third = get(images, saved(tmp_path / "saved.tar", BASE, UPPER))
    assert first.tree == second.tree
    assert first.image.digest == second.image.digest
    assert first.template.users == second.template.users == third.template.users
    with Root(pool, first.tree) as one, Root(pool, third.tree) as other:
        assert sorted(os.listdir(one)) == sorted(os.listdir(other))


def saved(path: Path, *layers: bytes, names: tuple[str, ...] = ("docker.io/library/saved:latest",)) -> str:
    """As `docker save` writes an image."""
    config = encoded(
        {"architecture": machine(), "os": "linux", "config": {},
         "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in layers]}}
    )  # fmt: skip
    manifest = [
        {"Config": "config.json", "RepoTags": list(names), "Layers": [f"{n}/layer.tar" for n in range(len(layers))]}
    ]
    with tarfile.open(path, "w") as tar:
        for name, data in (("config.json", config), ("manifest.json", encoded(manifest))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for number, data in enumerate(layers):
            info = tarfile.TarInfo(f"kept/{number}.tar")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            info = tarfile.TarInfo(f"{number}/layer.tar")  # as old versions name one that is there already
            info.type, info.linkname = tarfile.SYMTYPE, f"../kept/{number}.tar"
            tar.addfile(info)
    return f"docker-archive:{path}"


def machine() -> str:
    from paddock.storage.templates.images._documents import architecture

    return architecture()


def test_a_saved_image_is_found_by_its_name(images: Images, tmp_path: Path) -> None:
    reference = saved(tmp_path / "s.tar", BASE, names=("docker.io/library/saved:latest", "docker.io/me/other:1"))
    for name in ("saved", "saved:latest", "library/saved", "me/other:1", "docker.io/me/other:1"):
        assert get(images, f"{reference}:{name}").image.layers == 1
    with pytest.raises(NotFoundError, match="me/other:1"):
        get(images, f"{reference}:other")


def test_an_archive_of_a_stranger_is_not_read_by_the_process_that_asks_for_it(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(*arguments: object) -> NoReturn:
        raise AssertionError("it reads a stranger's tar itself")

    monkeypatch.setattr(tar, "Headers", reads)
    assert get(images, f"{saved(tmp_path / 's.tar', BASE, names=('docker.io/me/it:1',))}:me/it:1").image.layers == 1
    assert get(images, saved(tmp_path / "sized.tar", BASE, UPPER)).image.bytes == len(BASE) + len(UPPER)


def test_a_layout_that_changes_is_another_image_and_one_that_does_not_is_not_read_again(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = write_layout(tmp_path / "layout", BASE)
    first = get(images, reference)
    shutil.rmtree(tmp_path / "layout" / "blobs")
    assert get(images, reference) == first
    write_layout(tmp_path / "layout", BASE, UPPER)
    assert get(images, reference).tree != first.tree


def test_it_is_chosen_by_tag_and_platform(images: Images, tmp_path: Path) -> None:
    writer = LayoutWriter(tmp_path / "layout")
    writer.image([BASE], tag="1")
    writer.image([BASE, UPPER], tag="2")
    assert get(images, f"oci:{writer.path}:2").image.layers == 2
    with pytest.raises(InvalidArgumentError, match="1, 2"):
        get(images, f"oci:{writer.path}")
    with pytest.raises(NotFoundError, match="1, 2"):
        get(images, f"oci:{writer.path}:3")
    own = {"os": "linux", "architecture": machine()}
    other = {"os": "linux", "architecture": "s390x"}
    many = LayoutWriter(tmp_path / "many")
    described = [many.image([UPPER], machine="s390x", platform=other), many.image([BASE], platform=own)]
    index = encoded({"schemaVersion": 2, "manifests": described})
    many.manifests = [many.descriptor(index, "application/vnd.oci.image.index.v1+json")]
    many.write()
    assert get(images, f"oci:{many.path}").image.digest == described[1]["digest"]
    index = encoded({"schemaVersion": 2, "manifests": described[:1]})
    many.manifests = [many.descriptor(index, "application/vnd.oci.image.index.v1+json")]
    many.write()
    with pytest.raises(NotFoundError, match="linux/s390x"):
        get(images, f"oci:{many.path}")
    with pytest.raises(UnsupportedError, match="s390x"):
        get(images, write_layout(tmp_path / "silent", BASE, machine="s390x"))


def test_what_an_image_says_about_its_commands_is_kept(images: Images, tmp_path: Path, as_root: bool) -> None:
    record = get(
        images,
        write_layout(
            tmp_path / "layout",
            BASE,
            Env=["PATH=/app/bin", "A=b=c", "EMPTY="],
            Entrypoint=["/entry"],
            Cmd=["one", "two"],
            WorkingDir="/srv/app/",
            User="app:staff",
        ),
    )
    image, template = record.image, record.template
    assert (image.entrypoint, image.command, image.command_workdir) == (("/entry",), ("one", "two"), "/srv/app")
    assert template.env == {"PATH": "/app/bin", "A": "b=c", "EMPTY": ""}
    assert template.workdir == "/srv/app"
    assert template.default_user == "app"
    assert template.user(None) == User(name="app", uid=1000, gid=50 if as_root else 1000, home="/home/app")
    assert template.user("root") == User(name="root", uid=0, gid=0, home="/root")


USERS: list[tuple[str, User | str]] = [
    ("", User(name="root", uid=0, gid=0, home="/root")),
    ("0", User(name="root", uid=0, gid=0, home="/root")),
    ("mail", User(name="mail", uid=8, gid=8, home="/var/mail")),
    ("8:staff", User(name="mail", uid=8, gid=50, home="/var/mail")),
    ("4711", User(name="uid4711", uid=4711, gid=0, home="/home/uid4711")),
    ("4711:4712", User(name="uid4711", uid=4711, gid=4712, home="/home/uid4711")),
    ("nobody-there", "no user .* in /etc/passwd"),
    ("app:nobody-there", "no group .* in /etc/group"),
    ("65536", "no user .* in /etc/passwd"),
]


@pytest.mark.root
@pytest.mark.parametrize(("wanted", "expected"), USERS)
def test_the_user_is_found_as_docker_finds_him(
    images: Images, pool: Pool, tmp_path: Path, wanted: str, expected: User | str
) -> None:
    reference = write_layout(tmp_path / "layout", BASE, User=wanted)
    if isinstance(expected, str):
        with pytest.raises(ImageInvalidError, match=expected):
            get(images, reference)
        return
    record = get(images, reference)
    assert record.template.user(None) == expected
    with Root(pool, record.tree) as root:
        info = (root / expected.home[1:]).stat()
        assert (info.st_uid - root.stat().st_uid) == expected.uid


def test_an_image_has_no_say_in_who_root_is(images: Images, tmp_path: Path) -> None:
    hostile = (
        b"root:x:5000:5000::/../../etc:/bin/sh\ntoor:x:0:0::/:/bin/sh\n\xff\xfe:x:7:7::/:\nroot:x:0:0::/nowhere:\n"
    )
    hostile += b"a b:x:1:1::/:/\nx:x:1:99999999999::/:\n" * 5
    files = layer(directory("etc"), member("etc/passwd", hostile))
    template = get(images, write_layout(tmp_path / "layout", files)).template
    assert template.user("root") == User(name="root", uid=0, gid=0, home="/nowhere")
    assert [user.uid for user in template.users if user.name != "root"] in ([], [1000])


@pytest.mark.user
def test_an_ordinary_user_has_a_name_that_nobody_else_has(images: Images, tmp_path: Path) -> None:
    files = layer(directory("etc"), member("etc/passwd", b"user:x:7:7::/home/user:/bin/sh\n"))
    template = get(images, write_layout(tmp_path / "layout", files)).template
    assert template.user(None) == User(name="uid1000", uid=1000, gid=1000, home="/home/uid1000")


@pytest.mark.user
def test_an_ordinary_user_has_one_id_and_is_told_so(images: Images, pool: Pool, tmp_path: Path) -> None:
    files = layer(directory("etc"), member("etc/passwd", b"root:x:0:0::/root:/bin/sh\n", uid=7))
    record = get(images, write_layout(tmp_path / "layout", files, User="root"))
    assert record.template.user(None) == User(name="user", uid=1000, gid=1000, home="/home/user")
    assert any("run as root" in note for note in record.image.notes)
    with Root(pool, record.tree) as root:
        assert "user:x:1000:1000" in (root / "etc/passwd").read_text()
        assert (root / "home/user").is_dir()


def test_what_is_left_out_is_said(images: Images, tmp_path: Path) -> None:
    devices = layer(member("dev/null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3),
                    member("ping", pax_headers={"SCHILY.xattr.security.capability": "x"}))  # fmt: skip
    layout = write_layout(tmp_path / "layout", devices, UPPER)
    for _ in range(2):  # the second time from the layer that is there
        notes = "\n".join(get(images, layout).image.notes)
        assert "1 devices are left out" in notes
        assert "security.capability" in notes
        write_layout(tmp_path / "layout", devices, BASE)


def test_layers_that_images_share_are_unpacked_once_where_copies_cost_nothing(
    images: Images, pool: Pool, tmp_path: Path
) -> None:
    said: list[str] = []
    first = images.get(write_layout(tmp_path / "one", BASE, UPPER), said.append)
    second = images.get(write_layout(tmp_path / "two", BASE, layer(member("other"))), said.append)
    built = [words for words in said if words.startswith("building layer")]
    if pool.driver == "btrfs":
        assert built == ["building layer 1 of 2", "building layer 2 of 2", "building layer 2 of 2"]
        assert first.chain[0] == second.chain[0]
        assert len(pool.names()) == 5
    else:
        assert not built
        assert set(pool.names()) == {first.tree, second.tree}


def test_removed_is_what_no_other_image_has(images: Images, pool: Pool, tmp_path: Path) -> None:
    one, two = write_layout(tmp_path / "one", BASE, UPPER), write_layout(tmp_path / "two", BASE)
    first, second = get(images, one), get(images, two)
    gone = images.remove(one)
    assert set(gone) == {first.tree, *first.chain} - {second.tree, *second.chain}
    assert all(images.discard(tree) for tree in gone)
    assert set(pool.names()) == {second.tree, *second.chain}
    with pytest.raises(NotFoundError):
        images.remove(one)
    assert images.remove(second.image.digest[:19]) == tuple(sorted({second.tree, *second.chain}))
    assert images.list() == ()


def test_nobody_discards_a_tree_that_is_used_or_built(images: Images, pool: Pool, tmp_path: Path) -> None:
    reference = write_layout(tmp_path / "one", BASE)
    discarded: list[bool] = []

    def tell(words: str) -> None:
        discarded.extend(images.discard(name) for name in pool.names() if words.startswith("building"))

    record = images.get(reference, tell)
    assert not any(discarded)
    assert not images.discard(record.tree)
    pool.in_use.clear()  # as in the daemon after this one
    assert images.discard(record.tree)


def test_what_another_has_replaced_is_let_go(images: Images, pool: Pool, tmp_path: Path) -> None:
    first = get(images, write_layout(tmp_path / "layout", BASE, UPPER))
    second = get(images, write_layout(tmp_path / "layout", BASE))
    replaced = {first.tree, *first.chain} - {second.tree, *second.chain}
    assert {tree for tree in pool.names() if images.discard(tree)} == replaced


def test_what_a_killed_builder_has_begun_is_no_image_and_is_built_anew(
    images: Images, pool: Pool, tmp_path: Path
) -> None:
    reference = write_layout(tmp_path / "layout", BASE, UPPER)
    whole = get(images, reference)
    with Root(pool, whole.tree) as root:
        content = sorted(os.listdir(root))
    steps = 0
    while True:
        for tree in pool.names():
            pool.delete(tree)
        steps += 1
        fresh = Images(pool, tmp_path / "state")
        killed = killed_before_step(steps * 9, lambda fresh=fresh: fresh.get(reference, silent))
        for tree in pool.names():
            if tree == whole.tree:  # what has an image's name is one
                with Root(pool, tree) as root:
                    assert sorted(os.listdir(root)) == content
        if not killed:
            break
        fresh = Images(pool, tmp_path / "state")
        assert fresh.get(reference, silent).tree == whole.tree
        assert set(pool.names()) == {whole.tree, *whole.chain}
    assert steps > 3


# -- what is wrong with it


def changed(path: Path, change: Any) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(encoded(document))


def blobs(layout: Path) -> list[Path]:
    return sorted((layout / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)


WRONG: dict[str, Any] = {
    "a blob that is another": lambda at: blobs(at)[-1].write_bytes(b"x" * blobs(at)[-1].stat().st_size),
    "a blob that is cut short": lambda at: os.truncate(blobs(at)[-1], 20),
    "a blob that is longer": lambda at: lengthened(blobs(at)[-1]),
    "a blob that is a link": lambda at: linked(blobs(at)[-1]),
    "a blob that is a fifo": lambda at: fifo(blobs(at)[-1]),
    "an index that is a link": lambda at: linked(at / "index.json"),
    "no JSON": lambda at: (at / "index.json").write_bytes(b"{"),
    "deep JSON": lambda at: (at / "index.json").write_bytes(b'{"x":' + b"[" * 100_000),
    "not UTF-8": lambda at: (at / "index.json").write_bytes(b'{"manifests": [{"size": 1, "digest": "\xff"}]}'),
    "another version": lambda at: (at / "oci-layout").write_text('{"imageLayoutVersion": "2.0.0"}'),
    "no version": lambda at: (at / "oci-layout").write_text("[]"),
    "a digest that climbs": lambda at: changed(
        at / "index.json", lambda d: d["manifests"][0].update(digest="sha256:../../../x")
    ),
    "a size below zero": lambda at: changed(at / "index.json", lambda d: d["manifests"][0].update(size=-1)),
    "a size that is huge": lambda at: changed(at / "index.json", lambda d: d["manifests"][0].update(size=1 << 62)),
    "another type": lambda at: changed(at / "index.json", lambda d: d["manifests"][0].update(mediaType="text/html")),
    "both index and manifest": lambda at: changed(at / "index.json", lambda d: d.update(layers=[])),
}


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("driver", ["copy"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_layout_is_said_and_nothing_is_left(tmp_path: Path, name: str, driver: str) -> None:
    from tests.storage.drivers import DriverHarness

    harness = DriverHarness(tmp_path / "state", driver)
    pool = harness.open()
    images = Images(pool, tmp_path / "state")
    reference = write_layout(tmp_path / "layout", layer(member("secret" * 20, os.urandom(3000))))
    WRONG[name](tmp_path / "layout")
    before = descriptors()
    try:
        with pytest.raises(ImageInvalidError) as caught:
            get(images, reference)
        assert str(caught.value)
        assert pool.names() == ()
        assert images.list() == ()
    finally:
        pool.close()
    assert wait_until(lambda: descriptors() <= before)


def test_manifest_and_configuration_have_to_agree(images: Images, pool: Pool, tmp_path: Path) -> None:
    writer = LayoutWriter(tmp_path / "layout")
    for change, why in (
        (lambda config: config["rootfs"]["diff_ids"].pop(), "names 0 layers"),
        (lambda config: config["rootfs"]["diff_ids"].__setitem__(0, digest(b"other")), "configuration says"),
        (lambda config: config["config"].update(Env=["no variable\0"]), "not a variable"),
        (lambda config: config["config"].update(WorkingDir="/a/../../b"), "start in"),
    ):
        writer.manifests = []
        described = writer.image([BASE])
        manifest = json.loads((writer.path / "blobs/sha256" / described["digest"][7:]).read_bytes())
        config = json.loads((writer.path / "blobs/sha256" / manifest["config"]["digest"][7:]).read_bytes())
        change(config)
        manifest["config"] = writer.descriptor(encoded(config), manifest["config"]["mediaType"])
        writer.manifests = [writer.descriptor(encoded(manifest), described["mediaType"])]
        writer.write()
        with pytest.raises(ImageInvalidError, match=why):
            get(images, f"oci:{writer.path}")
        assert pool.names() == ()


def test_a_bomb_leaves_nothing(pool: Pool, tmp_path: Path) -> None:
    images = Images(pool, tmp_path / "state", limits=ImageLimits(unpacked_bytes=1 << 20, entries=100))
    with pytest.raises(ImageInvalidError, match="more than is taken"):
        get(images, write_layout(tmp_path / "big", layer(member("zeros", bytes(8 << 20)))))
    with pytest.raises(ImageInvalidError, match="more files"):
        get(images, write_layout(tmp_path / "many", layer(*(member(str(number)) for number in range(200)))))
    assert pool.names() == ()


def test_where_the_pool_has_no_room_it_says_so(
    images: Images, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddock.model import PoolSpace

    monkeypatch.setattr(type(pool), "space", lambda self: PoolSpace(used_bytes=1, available_bytes=1 << 20))
    with pytest.raises(ResourceExhaustedError, match="no room"):
        get(images, write_layout(tmp_path / "big", layer(member("zeros", bytes(8 << 20)))))
    assert pool.names() == ()


def test_an_archive_that_is_compressed_or_none_is_refused_with_what_to_do(images: Images, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(InvalidArgumentError, match="gunzip"):
        get(images, f"oci-archive:{tmp_path}/a.tar.gz")
    (tmp_path / "noise").write_bytes(os.urandom(4096))
    with pytest.raises(ImageInvalidError):
        get(images, f"oci-archive:{tmp_path}/noise")
    with pytest.raises(NotFoundError, match="no archive"):
        get(images, f"docker-archive:{tmp_path}/nothing")
    with pytest.raises(InvalidArgumentError, match="is not a file"):
        get(images, f"docker-archive:{tmp_path}")
    with pytest.raises(NotFoundError, match="no image layout"):
        get(images, f"oci:{tmp_path}/nothing")


REFERENCES = {
    "oci:/a/b": "oci:/a/b",
    "oci:/a//b/../c:1.0": "oci:/a/c:1.0",
    "docker://alpine": "docker://docker.io/library/alpine:latest",
    "docker://me/app:1": "docker://docker.io/me/app:1",
    "docker://localhost/app": "docker://localhost/app:latest",
    "docker://127.0.0.1:5000/a/b/c:x": "docker://127.0.0.1:5000/a/b/c:x",
    "docker://[::1]:5000/a": "docker://[::1]:5000/a:latest",
    f"docker://quay.io/a@sha256:{'0' * 64}": f"docker://quay.io/a@sha256:{'0' * 64}",
}


@pytest.mark.parametrize("text", REFERENCES)
def test_references_are_read_as_others_read_them(text: str) -> None:
    assert parse(text).text == REFERENCES[text]


@pytest.mark.parametrize(
    "text",
    ["oci:", "oci:relative", "oci:/a:b:c\n", "docker://", "docker://UPPER", "docker://a/../b", "docker://h:1/a b",
     "docker://a@sha256:12", "docker://user:secret@host/a", "docker://a:" + "t" * 200, "docker://evil.com\\@x/a", "http://x"],
)  # fmt: skip
def test_what_names_no_image_is_refused_before_anything_is_opened(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse(text)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader_of_references(text: str) -> None:
    for prefix in ("docker://", "oci:/", "docker-archive:/", ""):
        try:
            parsed = parse(prefix + text)
        except InvalidArgumentError:
            continue
        assert parse(parsed.text) == parsed


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["manifests", "layers", "config", "digest", "size", "mediaType", "rootfs", "diff_ids", "os",
                         "architecture", "platform", "annotations", "Env", "Config", "Layers", "schemaVersion"]),
        inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@given(json_values | st.binary(max_size=200))
def test_no_document_breaks_its_reader(value: Any) -> None:
    data = value if isinstance(value, bytes) else encoded(value)
    for read in (
        lambda: decode_index(data, "x"),
        lambda: decode(data, Manifest, "x"),
        lambda: decode(data, Config, "x"),
        lambda: decode(data, list[SavedImage], "x"),
        lambda: decode_config(data, 1),
    ):
        try:
            read()
        except PaddockError:
            continue


def test_hard_links_between_layers_share_one_file(images: Images, pool: Pool, tmp_path: Path) -> None:
    record = get(images, write_layout(tmp_path / "layout", BASE, layer(hard("again", "base"))))
    with Root(pool, record.tree) as root:
        assert (root / "again").stat().st_ino == (root / "base").stat().st_ino
