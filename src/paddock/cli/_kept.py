"""What paddock keeps on this machine: `paddock image`, `template`, `repos`, and `artifact`.

Images are OCI images as templates. Artifacts are files from workspaces and sandboxes.
"""

from __future__ import annotations

import argparse
import os
import sys

from paddock import client, model

from . import _render
from ._answer import answer, ask, each, listing, perform
from ._progress import progress
from ._usage import Verbs, argument, usage
from ._values import WORKSPACE, age

_IMAGE = argument(
    "image",
    metavar="IMAGE",
    help="oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME] or docker://HOST/NAME[:TAG][@DIGEST]",
)
_NAME = argument("name", metavar="NAME")


@usage(_IMAGE)
def _pull(options: argparse.Namespace) -> int:
    """Fetch the missing parts of an image, and make it a template for `paddock run --template IMAGE`.

    Prints its digest.

    Examples:
        paddock image pull docker://python:3.12
    """
    with progress("fetching the image"):
        image = perform(model.PullImage(reference=client.absolute_template(options.image)))
    return answer(options, image, image.digest, notes=image.notes)


@usage()
def _list_images(options: argparse.Namespace) -> int:
    """List which are here."""
    found = perform(model.ListImages())
    empty = "no images: paddock image pull docker://NAME:TAG"
    return listing(options, found, "IMAGE, DIGEST, USER, SIZE, PULLED", _image_row, empty)


def _image_row(one: model.Image) -> tuple[str, ...]:
    return one.reference, one.digest[:19], one.user, _render.size(one.bytes), _render.when(one.pulled_at)


@usage(argument("image", nargs="+", metavar="IMAGE", help="as it is listed, or its digest"))
def _remove_images(options: argparse.Namespace) -> int:
    """Remove images. Those that sandboxes live on stay until they end."""
    return each(options, options.image, lambda one: model.RemoveImage(image=client.absolute_template(one)))


@usage()
def _list_templates(options: argparse.Namespace) -> int:
    """List which there are, and images that are here.

    Examples:
        paddock template ls
    """
    found = [
        *perform(model.ListTemplates()),
        *(
            model.TemplateInfo(name=one.reference, state="built", detail=f"an image of {_render.size(one.bytes)}")
            for one in perform(model.ListImages())
        ),
    ]
    return listing(options, found, "TEMPLATE, STATE, INSIDE", lambda one: (one.name, one.state, one.detail))


@usage()
def _list_repositories(options: argparse.Namespace) -> int:
    """List the repositories in the cache.

    Examples:
        paddock repos ls
    """
    found = perform(model.ListRepositories())
    empty = "no repositories: paddock up URL --task NAME"
    return listing(options, found, "ID, URL, SCOPE, DEFAULT, BRANCHES, TAGS, SEEN", _repository_row, empty)


def _repository_row(one: model.Repository) -> tuple[str, ...]:
    seen = _render.when(one.observed_at)
    return one.id, one.url, one.scope, one.default_branch or "", str(one.branches), str(one.tags), seen


@usage(
    argument("url", metavar="URL", help="https, http or git; or a directory of this machine"),
    argument("ref", nargs="?", metavar="REF", help="a branch, a tag or a full id (default: its own branch)"),
    argument("--max-age", type=age, default=0.0, metavar="TIME", help="what was seen that long ago is new enough"),
)
def _fetch(options: argparse.Namespace) -> int:
    """Fetch the missing parts of a repository into the cache, and print the commit of a ref."""
    url = options.url if ":" in options.url else os.path.abspath(options.url)
    with progress("looking at the repository"):
        acquired = ask(model.AcquireRepository, options, url=url, max_age_seconds=options.max_age)
    return answer(options, acquired, f"{acquired.commit} {acquired.ref or ''}".rstrip())


@usage(argument("repository", nargs="+", metavar="REPOSITORY", help="id, unique prefix of one, or URL"))
def _remove_repositories(options: argparse.Namespace) -> int:
    """Remove repositories from the cache, unless something needs them."""
    return each(options, options.repository, lambda one: model.DeleteRepository(repository=one))


@usage(
    WORKSPACE,
    argument("path", metavar="PATH", help="inside"),
    argument("--name", help="default: the last part of PATH"),
)
def _add(options: argparse.Namespace) -> int:
    """Keep a file, or a directory as a tar archive. Prints its SHA-256."""
    artifact = ask(model.AddArtifact, options)
    return answer(options, artifact, artifact.digest)


@usage(argument("workspace", nargs="?", metavar="TASK", help="only of this one"))
def _list_artifacts(options: argparse.Namespace) -> int:
    """List the artifacts."""
    found = ask(model.ListArtifacts, options)
    empty = "no artifacts: paddock artifact add TASK PATH"
    return listing(options, found, "OF, NAME, SIZE, SHA-256, TAKEN", _artifact_row, empty)


def _artifact_row(one: model.Artifact) -> tuple[str, ...]:
    return one.of, one.name, _render.size(one.size_bytes), one.digest, _render.when(one.created_at)


@usage(WORKSPACE, _NAME, argument("-o", "--output", metavar="FILE", help="a file that is not there yet"))
def _get(options: argparse.Namespace) -> int:
    """Write it to stdout or to a new file."""
    from paddock.errors import InvalidArgumentError

    if options.json and options.output is None:
        raise InvalidArgumentError("stdout holds the content or a document, not both", hint="-o FILE")
    action = model.GetArtifact(workspace=options.workspace, name=options.name)
    with client.default_transport().perform(action) as reader:
        sys.stdout.flush()
        descriptor = 1
        if options.output is not None:
            descriptor = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for data in reader:
                _render.raw(descriptor, data)
        finally:
            if descriptor != 1:
                os.close(descriptor)
    return answer(options, {"file": options.output})


@usage(WORKSPACE, _NAME)
def _remove_artifact(options: argparse.Namespace) -> int:
    """Keep it no longer."""
    ask(model.RemoveArtifact, options)
    return answer(options, {"removed": options.name})


verb_image = Verbs(pull=_pull, ls=_list_images, rm=_remove_images)
verb_template = Verbs(ls=_list_templates)
verb_repos = Verbs(ls=_list_repositories, fetch=_fetch, rm=_remove_repositories)
verb_artifact = Verbs(add=_add, list=_list_artifacts, get=_get, rm=_remove_artifact)
