"""Images of registries: by tag or digest, with a token, through a list of platforms; one that lies is found out."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.errors import ImageInvalidError, NotFoundError, PaddockError, PlatformError, RequestError
from paddock.storage import Pool, open_pool, prepare
from paddock.storage.templates.images import Images
from tests.conformance.trees import Root
from tests.images.layouts import INDEX, MANIFEST, LayoutWriter, directory, encoded, layer, member
from tests.images.registries import Registry, debians, serving, tag
from tests.images.test_images import BASE, UPPER, machine, silent


@pytest.fixture
def pool(tmp_path: Path) -> Generator[Pool]:
    pool = open_pool(tmp_path / "state", prepare(tmp_path / "state", driver="copy"))
    yield pool
    pool.close()


@pytest.fixture
def images(pool: Pool, tmp_path: Path) -> Images:
    return Images(pool, tmp_path / "state", clock=lambda: 5.0)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    writer = LayoutWriter(tmp_path / "layout")
    described = writer.image([BASE, UPPER])
    return Registry(writer.path, {"latest": tag(writer.path, described)})


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `docker login` writes to."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "config.json"


def log_in(file: Path, host: str, login: str) -> None:
    file.write_text(json.dumps({"auths": {host: {"auth": base64.b64encode(login.encode()).decode()}}}))


def test_it_is_fetched_once_and_asked_for_again_only_by_a_pull(images: Images, pool: Pool, registry: Registry) -> None:
    with serving(registry) as host:
        reference = f"docker://{host}/me/app"
        first = images.get(reference, silent)
        asked = len(registry.asked)
        assert images.get(reference, silent) == first
        assert len(registry.asked) == asked
        writer = LayoutWriter(registry.layout)
        registry.tags["latest"] = tag(registry.layout, writer.image([BASE, layer(member("newer"))]))
        assert images.get(reference, silent) == first, "what was found before is good enough"
        newer = images.pull(reference, silent)
        assert newer.tree != first.tree
        fetched = [path for path, _ in registry.asked[asked:] if "/blobs/" in path]
        assert images.get(f"{reference}:latest", silent) == newer
        assert fetched
    with Root(pool, newer.tree) as root:
        assert (root / "newer").exists()
    again = Images(pool, Path(registry.layout).parent / "state")
    assert again.get(reference, silent).tree == newer.tree, "also by another program, and without the registry"


def test_one_on_this_machine_is_not_asked_by_way_of_another(
    images: Images, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(registry) as host:
        assert images.get(f"docker://{host}/me/app", silent).image.layers == 2


def test_by_its_digest_and_for_this_machine(images: Images, registry: Registry) -> None:
    writer = LayoutWriter(registry.layout)
    own, other = (
        writer.image([each], machine=name, platform={"os": "linux", "architecture": name})
        for each, name in ((BASE, machine()), (UPPER, "s390x"))
    )
    index = writer.blob(encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, own]}))
    with serving(registry) as host:
        assert images.get(f"docker://{host}/me/app@{index}", silent).image.digest == own["digest"]
        assert images.get(f"docker://{host}/me/app@{own['digest']}", silent).image.digest == own["digest"]
        with pytest.raises(NotFoundError):
            images.get(f"docker://{host}/me/app:nothing", silent)
        with pytest.raises(NotFoundError):
            images.get(f"docker://{host}/me/other", silent)


def test_a_token_is_had_with_the_users_own_login_which_goes_nowhere_else(
    images: Images, registry: Registry, login: Path, tmp_path: Path
) -> None:
    registry.login = "me:password"
    store = Registry(registry.layout)
    with serving(registry) as host, serving(store) as elsewhere:
        registry.blobs_at = f"http://{elsewhere}"
        with pytest.raises(RequestError, match="docker login"):
            images.get(f"docker://{host}/me/app", silent)
        log_in(login, host, "me:wrong")
        with pytest.raises(RequestError, match="docker login"):
            images.pull(f"docker://{host}/me/app", silent)
    again = Images(images._pool, tmp_path / "state")  # pyright: ignore[reportPrivateUsage]
    with serving(registry) as host, serving(store) as elsewhere:
        registry.blobs_at = f"http://{elsewhere}"
        log_in(login, host, "me:password")
        assert again.get(f"docker://{host}/me/app", silent).image.layers == 2
        assert store.asked
        assert all(credential is None for _, credential in store.asked)
        assert {credential for path, credential in registry.asked if path.startswith("/v2/")} == {
            None,
            "Bearer granted",
        }


@pytest.mark.parametrize("realm", ["http://example.invalid/token", "file:///etc/passwd", "ftp://127.0.0.1/x", ""])
def test_a_login_is_not_given_to_who_would_send_it_in_the_clear(
    images: Images, registry: Registry, login: Path, realm: str
) -> None:
    """A registry on this machine may do without TLS; what it names may not, wherever it is."""
    registry.login, registry.realm = "me:password", realm or "no-url"
    with serving(registry) as host:
        log_in(login, host, "me:password")
        with pytest.raises(PaddockError):
            images.get(f"docker://{host}/me/app", silent)


def test_a_registry_that_gives_another_thing_than_was_asked_for_is_found_out(
    images: Images, pool: Pool, registry: Registry
) -> None:
    top = registry.tags["latest"]
    manifest = json.loads((registry.layout / "blobs" / top.replace(":", "/")).read_bytes())
    config, first = manifest["config"]["digest"], manifest["layers"][0]["digest"]
    good = (registry.layout / "blobs" / first.replace(":", "/")).read_bytes()
    with serving(registry) as host:
        for name, data, why in (
            (config, b"{}", "its digest is"),
            (first, good[:-1] + bytes([good[-1] ^ 1]), "its digest is|cannot be unpacked"),
            (first, good + b"x", "more than its"),
            (first, good[:-1], "ends after"),
            (top, b"x" * (5 << 20), "more than"),
            (top, b"[]", "not what it should be|not an image"),
        ):
            registry.changed, registry.kinds = {name: data}, {top: MANIFEST}
            with pytest.raises(ImageInvalidError, match=why):
                images.get(f"docker://{host}/me/app@{top}" if name != top else f"docker://{host}/me/app", silent)
        registry.changed, registry.kinds = {}, {top: "text/html"}
        with pytest.raises(ImageInvalidError, match="not an image"):
            images.get(f"docker://{host}/me/app", silent)
    assert pool.names() == ()
    assert not list((registry.layout.parent / "state" / "images").glob("*"))


def test_a_registry_that_leads_round_in_circles_or_to_files_is_left(images: Images, registry: Registry) -> None:
    with serving(registry) as host:
        for there in (f"http://{host}", "file:///etc", "http://127.0.0.1:1"):
            registry.blobs_at = there
            with pytest.raises(PlatformError):
                images.get(f"docker://{host}/me/app", silent)


def test_one_that_is_not_there_is_said_to_be(images: Images) -> None:
    with pytest.raises(PlatformError, match=r"127\.0\.0\.1:1 cannot be reached: Connection refused"):
        images.get("docker://127.0.0.1:1/me/app", silent)


def tool(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed: apt-get install {name}")


def run(*command: str) -> str:
    with tempfile.NamedTemporaryFile() as nothing:  # no login of whoever runs this
        nothing.write(b"{}")
        nothing.flush()
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "REGISTRY_AUTH_FILE": nothing.name}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_skopeo_pushes_to_a_real_registry_is_the_same_image(images: Images, tmp_path: Path) -> None:
    tool("skopeo", "docker-registry")
    writer = LayoutWriter(tmp_path / "layout")
    described = writer.image([BASE, UPPER])
    with debians(tmp_path / "registry") as host:
        copy = ("skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false")
        run(*copy, f"oci:{writer.path}:latest", f"docker://{host}/me/app:1")
        run(*copy, "--format", "v2s2", f"oci:{writer.path}:latest", f"docker://{host}/me/app:docker")
        same = images.get(f"docker://{host}/me/app:1", silent)
        docker = images.get(f"docker://{host}/me/app:docker", silent)
    assert same.image.digest == described["digest"]
    assert same.tree == images.get(f"oci:{writer.path}", silent).tree
    assert docker.template.users == same.template.users
    assert docker.template.env == same.template.env


@pytest.mark.parametrize("form", ["oci", "oci-archive", "docker-archive"])
def test_what_skopeo_writes_is_read(images: Images, pool: Pool, tmp_path: Path, form: str) -> None:
    tool("skopeo")
    writer = LayoutWriter(tmp_path / "layout")
    writer.image([BASE, UPPER], Cmd=["run"], Env=["A=b"])
    target = f"{form}:{tmp_path}/written:named:1"
    run("skopeo", "--insecure-policy", "copy", f"oci:{writer.path}:latest", target)
    record = images.get(target if form == "docker-archive" else f"{form}:{tmp_path}/written", silent)
    assert record.image.command == ("run",)
    assert record.template.env["A"] == "b"
    with Root(pool, record.tree) as root:
        assert (root / "upper").read_bytes() == b"upper"
        assert not (root / "base").exists()


@pytest.mark.root
def test_what_hides_hides_as_it_does_with_podman(images: Images, pool: Pool, tmp_path: Path) -> None:
    tool("podman")
    lower = layer(directory("d"), member("d/x"), directory("d/e"), member("d/e/y"), member("a"), member("b"),
                  directory("e"), member("e/x"), member("f"))  # fmt: skip
    upper = layer(member("d/.wh.x"), directory("d/e"), member("d/e/.wh..wh..opq"), member("d/e/new"), member(".wh.a"),
                  member(".wh.e"), directory("f"), member("f/below"), member("made/here"))  # fmt: skip
    writer = LayoutWriter(tmp_path / "layout")
    writer.image([lower, upper])
    short = tempfile.mkdtemp(prefix="pm-")  # podman takes no longer one
    podman = ("podman", "--root", f"{short}/p", "--runroot", f"{short}/r", "--storage-driver", "vfs")
    try:
        id = run(*podman, "pull", "-q", f"oci:{writer.path}:latest").strip()
        mounted = Path(run(*podman, "image", "mount", id).strip())
        theirs = {str(path.relative_to(mounted)) for path in mounted.rglob("*")}
        with Root(pool, images.get(f"oci:{writer.path}", silent).tree) as root:
            ours = {str(path.relative_to(root)) for path in root.rglob("*")}
    finally:
        subprocess.run([*podman, "image", "umount", "-a"], capture_output=True, check=False)
        subprocess.run([*podman, "rmi", "-af"], capture_output=True, check=False)
        shutil.rmtree(short, ignore_errors=True)
    added = {
        path
        for path in ours - theirs
        if path.split("/")[0] in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "workspace")
    }
    assert ours - added == theirs
    assert "made/here" in ours
