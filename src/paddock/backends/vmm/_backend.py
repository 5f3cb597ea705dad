"""The base of levels whose isolation is a program in a jail. The jail does the same for the VMM as for a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path, PurePosixPath
from typing import Any

from paddock.backends.base import Ending, SandboxPlan
from paddock.backends.guest import program
from paddock.backends.jail import JailBackend, SupervisorClient
from paddock.backends.threads import in_its_own_thread
from paddock.backends.vmm._instance import OWN_VARIABLES, Orders, VmmInstance, plan_of_nobody
from paddock.backends.vmm._waiting import REFUSES, Waiting
from paddock.errors import NotFoundError, SandboxDiedError, logged
from paddock.linux import proc
from paddock.model import ExecSpec, IdPrefix, Limit, SandboxId, mint, replace
from paddock.storage import Templates
from paddock.storage.templates.kit import PLACE
from paddock.storage.templates.recipe import Entry, Recipe, of_kit, writes
from paddock.supervisor.plan import JailPlan, Tree

GUEST = str(PurePosixPath(REFUSES).with_name("sentry"))
"""By the end of this path it knows that it is pid 1 (`native/init.h`)."""
_HOSTS = PurePosixPath("/etc/hosts")
_MIB = 1 << 20
_NEWS_SECONDS = 30.0
_ENDING_SECONDS = 2.0


class VmmBackend(JailBackend):
    """A level sets `name` and `level`, says how strong it is, and overrides `build_plan` and `orders`.

    `name` is the kind of its sandboxes in the supervisor's records: another backend neither lists nor adopts them.
    """

    instance = VmmInstance
    hinted = False
    extra_memory_mib = 64
    """The need of the isolation itself, beside the caller's limit."""
    extra_processes = 32
    at_hand = True
    """The agent for the first command runs before the create returns."""
    late_trees = False
    """A claim of a warm VMM can mount workspace, repository and host directories: nothing in it looks there before."""
    oom_score: int | None = None
    """Of commands, where the guest's own kernel shall kill them before their agent."""
    tells = False
    """The guest says which limit a failed command exceeded, because its kernel isn't the machine's."""

    def __init__(self, state_dir: Path, *, supervisor: SupervisorClient | None = None, for_tests: bool = False) -> None:
        super().__init__(state_dir, supervisor=supervisor, for_tests=for_tests)
        self.waiting = Waiting(self)
        self._guest: str | None = None
        self._baking: dict[str, asyncio.Lock] = {}

    # what a level decides

    async def build_plan(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan:
        """Return the VMM's jail: the sandbox's own with the kit in it and more room, unless a level says more."""
        return jail

    async def orders(self, plan: SandboxPlan, jail: JailPlan) -> Orders:
        """Return the orders for the controller in that jail."""
        raise NotImplementedError

    async def ready(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        """Finish a create: the guest has greeted, and has served nothing yet. An exception undoes the create."""

    def hosts_is_its_own(self, plan: SandboxPlan) -> bool:
        """Tell whether /etc/hosts may be written. A mount over /etc is the host's: nothing is written there."""
        return not any(_HOSTS.is_relative_to(mount.target) for mount in (*plan.spec.mounts, *plan.trees))

    async def become(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        """Make the warm VMM, which has served no caller, the sandbox of the plan, and tell its guest. An exception ends
        it."""
        await self.ready(plan, instance)

    async def rehearse(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        """Do the work of a first command once. An exception ends the VMM.

        It looks for a program, and runs the guest's own, which refuses. Nothing foreign runs: no template can know the
        name that it looks for.
        """
        for spec in (ExecSpec(argv=(os.urandom(16).hex(),)), ExecSpec(argv=(REFUSES,), cwd="/")):
            with contextlib.suppress(NotFoundError):  # a virtual machine, which was baked after a program ran, has none
                await instance.run(spec)

    def bare(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan | None:
        """`jail` as it has to wait to become the plan's; None: none that waited could."""
        if (plan.trees or plan.spec.mounts or plan.protect) and not self.late_trees:
            return None
        return jail._replace(trees=jail.trees[len(plan.trees) :], mounts=(), protect=())

    # what a level uses

    def own_environment(self, plan: SandboxPlan) -> dict[str, str]:
        """Return what comes with each of its commands, where the guest was started for any sandbox of the template."""
        known = plan.template.env.items()
        return {
            name: value
            for name, value in self.jail_plan(plan).env.items()
            if (name, value) not in known and name not in OWN_VARIABLES
        }

    @property
    def identities(self) -> tuple[str, ...]:
        return ("init", "user", "root") if self.root_user else ("init", "user")

    async def guest(self) -> Tree:
        """Return the native guest's program, which is pid 1 behind the isolation, as `GUEST` in the jail."""
        if self._guest is None:
            content = await asyncio.to_thread(program().read_bytes)
            self._guest = await asyncio.to_thread((await self.templates()).part, _recipe(content))
        return Tree(name=self._guest, target=str(PurePosixPath(GUEST).parent), writable=False)

    async def baked(self, recipe: Recipe) -> str:
        """Return a tree like the kit's, whose recipe starts something: so one waits for it, and the others for that
        one."""
        async with self._baking.setdefault(recipe.tree, asyncio.Lock()):
            return await in_its_own_thread((await self.templates()).part, recipe)

    def booting(self, bake: Callable[[str], Coroutine[Any, Any, None]]) -> Callable[[str], None]:
        """Return what a recipe, in its own thread, has `bake` a tree by."""
        loop = asyncio.get_running_loop()
        return lambda tree: asyncio.run_coroutine_threadsafe(bake(tree), loop).result()

    def unbaked(self, plan: SandboxPlan, tree: str, seconds: float) -> SandboxPlan:
        """`plan` without what is one sandbox's own, to be baked in that tree."""
        own = {"id": SandboxId(mint(IdPrefix.SANDBOX)), "hostname": "sandbox", "tree": tree, "exits": False}
        return replace(plan_of_nobody(plan), **own, deadline=proc.boottime() + seconds)

    @contextlib.asynccontextmanager
    async def oven(self, plan: SandboxPlan, jail: JailPlan) -> AsyncGenerator[VmmInstance]:
        """Yield a VMM that never becomes a sandbox. No backend takes it for one."""
        instance = await self.make(plan, jail._replace(kind="oven"))
        assert isinstance(instance, VmmInstance)
        try:
            yield instance
        finally:
            await asyncio.shield(self.start(self.put_out(instance)))

    async def put_out(self, instance: VmmInstance) -> None:
        """End a VMM that isn't a sandbox. A sweep finds leftovers."""
        with logged("end the machine", instance.id):
            await instance.kill()
            await self.forget(instance.id)
        await instance.aclose()

    async def templates(self) -> Templates:
        return await self.supervisor.templates()

    # the contract

    async def create(self, plan: SandboxPlan) -> VmmInstance:
        with self.waiting.creating():
            jail = await self.build_plan(plan, await self.furnish(self.jail_plan(plan)))
            instance = await self.waiting.claim(plan, jail)
            if instance is None:
                instance = await self.start_vmm(plan, jail, await self.orders(plan, jail))
        self.waiting.used(plan, jail)
        return instance

    async def start_vmm(self, plan: SandboxPlan, jail: JailPlan, orders: Orders) -> VmmInstance:
        """Return a VMM, up and greeted. All or nothing."""
        instance = await self.make(plan, jail)
        assert isinstance(instance, VmmInstance)
        try:
            async with instance.kept_awake(plan.spec.idle_seconds):
                await instance.start_vmm(orders)
                if plan.begun:
                    await instance.end_copies()
                if not orders.waiting:
                    await self.ready(plan, instance)
            if self.at_hand or orders.waiting:
                with logged("reach the guest", plan.id):  # the next call gets the error
                    await instance.connection("user")
        except BaseException as error:
            # Should the caller lose patience here too, this is still done.
            ending = await asyncio.shield(self.start(_undo(instance, died=isinstance(error, SandboxDiedError))))
            await self.forget(plan.id)
            if ending is not None and ending.limit is Limit.TTL:
                raise SandboxDiedError(
                    f"the time of {plan.id} was over before it was there",
                    hint="ask for a longer ttl_seconds; what is made for the first time takes longer",
                ) from None
            raise
        return instance

    async def pass_on(
        self, waiting: VmmInstance, plan: SandboxPlan, jail: JailPlan, env: dict[str, str]
    ) -> VmmInstance:
        """Make what `waiting` holds the sandbox of `plan`. If it raises, `take_back` has to follow."""
        self.ending(plan.id, plan.instance_id)
        self._being_made.add(plan.id)
        try:
            late = [tree.target for tree in jail.trees[: len(plan.trees)]]
            answer = await self.supervisor.request("claim", id=waiting.id, plan=jail.to_message(), late=late)
            instance = self.instance(self, plan.id, plan.template, plan.instance_id, jail.env)
            assert isinstance(instance, VmmInstance)
            instance.pid = answer["pid"]
            instance.take_over(waiting)
            async with instance.kept_awake(plan.spec.idle_seconds):
                steps = instance.claim(env), instance.tell_deadline(plan.deadline), self.become(plan, instance)
                await asyncio.gather(*steps)
        finally:
            self._being_made.discard(plan.id)
        return instance

    async def take_back(self, plan: SandboxPlan) -> None:
        """End a half-made sandbox. Wait for the report of its end, so that it can't reach the next one of that name."""
        with logged("take back", plan.id):
            await self.supervisor.request("kill", id=plan.id, instance_id=plan.instance_id)
            async with asyncio.timeout(_NEWS_SECONDS):
                await asyncio.shield(self.ending(plan.id, plan.instance_id))
            await self.supervisor.tell("forget", id=plan.id)
        self.state_of(plan.id).endings.pop(plan.instance_id, None)

    async def adopt(self, id: SandboxId) -> VmmInstance | None:
        instance = await super().adopt(id)
        assert instance is None or isinstance(instance, VmmInstance)
        if instance is not None:
            instance.listen()
        return instance

    async def aclose(self) -> None:
        await self.waiting.aclose()
        await super().aclose()

    async def furnish(self, jail: JailPlan) -> JailPlan:
        """Return a jail with the kit in it, and room for the isolation."""
        kit = await asyncio.to_thread((await self.templates()).kit)
        return jail._replace(
            trees=(*jail.trees, Tree(name=kit, target=PLACE, writable=False)),
            memory_bytes=jail.memory_bytes + self.extra_memory_mib * _MIB,
            processes=jail.processes + self.extra_processes,
        )


def cores(cpus: float) -> int:
    """Return how many processors the sandbox's programs see."""
    return max(1, min(math.ceil(cpus), os.cpu_count() or 1))


async def _undo(instance: VmmInstance, *, died: bool) -> Ending | None:
    """How it ended, if it did so by itself."""
    ending: Ending | None = None
    with logged("hear the end", instance.id):  # its supervisor is gone: a sweep finds what is left
        if died:
            async with asyncio.timeout(_ENDING_SECONDS):
                ending = await instance.wait_ended()
    with logged("end the machine", instance.id):
        await instance.kill()
    await instance.aclose()
    return ending


def _recipe(guest: bytes) -> Recipe:
    program, link = PurePosixPath(REFUSES).name, PurePosixPath(GUEST).name
    files = {program: Entry("file", 0o755, guest), link: Entry("link", 0o777, program.encode())}
    return of_kit("guest", (hashlib.sha256(guest).hexdigest(),), writes(lambda: files))
