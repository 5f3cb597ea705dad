"""The only way out: sockets in the sandbox's own network, that the supervisor makes and holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from paddock.backends import Exits, Instance
from paddock.errors import InternalError, InvalidArgumentError, SandboxDiedError
from paddock.model import ExecId, ExecSpec
from paddock.supervisor import layout
from tests.orphans import descriptors, none_lost, wait_until
from tests.supervisor.conftest import Yard, run
from tests.supervisor.test_jail import supervisor_pid

Play = Callable[[Callable[[Yard], Any]], Any]
_AS_CALLER = "import socket; s = socket.create_connection(({address!r}, 443), 30); print(s.recv(9).decode())"


async def taken(yard: Yard, instance: Instance) -> Exits:
    exits = await yard.backend.exits(instance.id, 0)
    assert exits is not None
    return exits


def greet(exits: Exits) -> bytes:
    """Takes the next connection, says hello, returns the original destination's raw address."""
    exits.sockets[0].settimeout(60)
    accepted, _ = exits.sockets[0].accept()
    with accepted:
        accepted.sendall(b"hello")
        return struct.unpack("!HH4s8x", accepted.getsockopt(socket.SOL_IP, 80, 16))[2]


async def call(instance: Instance, exits: Exits, address: str = "192.0.2.7") -> None:
    greeted = asyncio.ensure_future(asyncio.to_thread(greet, exits))
    code, printed = await run(instance, "python3", "-c", _AS_CALLER.format(address=address))
    assert (code.code, printed) == (0, b"hello\n")
    assert await greeted == socket.inet_aton(address)


def test_a_call_to_any_address_arrives_at_the_sockets_that_the_supervisor_hands_out(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        exits = await taken(yard, instance)
        try:
            await call(instance, exits)
        finally:
            exits.close()
        await instance.kill()

    play(scene)


def test_the_sockets_come_with_the_create_and_go_with_a_sandbox_that_no_gateway_served(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        (await taken(yard, instance := await yard.create(exits=True))).close()
        await instance.kill()
        before = len(descriptors())
        instance = await yard.create(exits=True)
        os.kill(supervisor := supervisor_pid(yard), signal.SIGSTOP)
        try:
            exits = await taken(yard, instance)  # nobody is asked for them
        finally:
            os.kill(supervisor, signal.SIGCONT)
        exits.close()
        await instance.kill()
        instance = await yard.create(exits=True)
        await instance.kill()
        await instance.aclose()
        await yard.backend.forget(instance.id)
        assert await asyncio.to_thread(none_lost, before)

    play(scene)


def test_who_calls_while_there_is_no_gateway_waits_for_one(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        (await taken(yard, instance)).close()
        calling = asyncio.ensure_future(run(instance, "python3", "-c", _AS_CALLER.format(address="192.0.2.7")))
        exits = await taken(yard, instance)
        try:
            await asyncio.to_thread(greet, exits)
            assert (await calling)[1] == b"hello\n"
        finally:
            exits.close()
        await instance.kill()

    play(scene)


def test_nothing_else_gets_out_and_its_refusal_is_immediate(play: Play) -> None:
    probes = """
import errno, socket
def said(call):
    try: call()
    except OSError as error: return errno.errorcode.get(error.errno, str(error))
    return "sent"
def datagram(family, to):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", to)
print(said(lambda: datagram(socket.AF_INET, ("8.8.8.8", 443))))
print(said(lambda: datagram(socket.AF_INET, ("224.0.0.251", 5353))))
print(said(lambda: datagram(socket.AF_INET6, ("2001:db8::1", 443))))
print(said(lambda: socket.create_connection(("127.0.0.1", 15001), 30)))
"""

    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        status, printed = await run(instance, "python3", "-c", probes)
        assert status.code == 0, printed
        assert printed.split() == [b"EPERM", b"EPERM", b"EPERM", b"ECONNREFUSED"]
        await instance.kill()

    play(scene)


def test_a_sandbox_without_exits_has_no_route_to_anywhere_and_none_can_be_had_of_it(play: Play) -> None:
    probe = "import socket; socket.create_connection(('192.0.2.7', 443), 30)"

    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        status, printed = await run(instance, "python3", "-c", probe)
        assert status.code == 1
        assert b"Network is unreachable" in printed
        with pytest.raises(InvalidArgumentError, match="no network at all"):
            await yard.backend.exits(instance.id, 0)
        await instance.kill()

    play(scene)


def test_exits_are_made_for_a_sandbox_that_runs_with_all_that_goes_with_them(play: Play) -> None:
    probe = """
import os
print(os.environ["SSL_CERT_FILE"], open("/etc/ssl/certs/ca-certificates.crt").read().strip())
print(open("/dev/ca-certificates.pem").read().strip())
"""

    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        assert (await run(instance, "true"))[0].code == 0
        for _ in range(2):
            exits = await yard.backend.exits(instance.id, 0, make=True)
            assert exits is not None
            try:
                await call(instance, exits)
            finally:
                exits.close()
        (yard.state_dir / layout.RUN / instance.id / layout.TRUST).write_text("certificates\n")
        status, printed = await run(instance, "python3", "-c", probe)
        assert (status.code, printed) == (0, b"/dev/ca-certificates.pem certificates\ncertificates\n")
        assert (await yard.backend.record(instance.id)).exits
        again = await yard.backend.adopt(instance.id)
        assert again is not None
        assert (await run(again, "sh", "-c", "echo $PIP_CERT"))[1] == b"/dev/ca-certificates.pem\n"
        await instance.kill()

    play(scene)


def test_who_has_taken_the_gateways_port_gets_no_exits_until_it_is_free(play: Play) -> None:
    taker = (
        "import socket, time; s = socket.create_server(('0.0.0.0', 15001)); print('taken', flush=True); time.sleep(600)"
    )

    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        spec = ExecSpec(argv=("python3", "-c", taker))
        handle = await instance.start(spec, id=ExecId("ex_taker"), background=False)
        assert handle.stdout is not None
        assert await handle.stdout.read(99) == b"taken\n"
        with pytest.raises(InternalError, match="listens at a port that the gateway needs"):
            await yard.backend.exits(instance.id, 0, make=True)
        await instance.signal_exec(ExecId("ex_taker"), signal.SIGKILL)
        await handle.wait()
        await handle.aclose()
        exits = await yard.backend.exits(instance.id, 0, make=True)
        assert exits is not None
        try:
            await call(instance, exits)
        finally:
            exits.close()
        await instance.kill()

    play(scene)


@pytest.mark.root
def test_the_next_supervisor_makes_exits_for_a_sandbox_that_runs(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        os.kill(int(yard.backend.supervisor.facts["pid"]), signal.SIGKILL)
        exits = await yard.backend.exits(instance.id, 0, make=True)
        assert exits is not None
        try:
            await call(instance, exits)
        finally:
            exits.close()
        await instance.kill()

    private_play(scene)


@pytest.mark.root
def test_root_inside_can_neither_change_nor_read_the_rules(play: Play) -> None:
    attack = """
import errno, socket, struct
def said(family, kind, body, flags):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as s:
        begin = struct.pack("=IHHIIBBH", 20, 16, 1, 0, 0, 0, 0, 10) if family == 12 else b""
        end = struct.pack("=IHHIIBBH", 20, 17, 1, 2, 0, 0, 0, 10) if family == 12 else b""
        s.send(begin + struct.pack("=IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body + end)
        code = -struct.unpack_from("=i", s.recv(4096), 16)[0]
        return errno.errorcode.get(code, str(code))
def tried(*arguments):
    try: return said(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
print(tried(12, 10 << 8 | 2, struct.pack("=BBH", 1, 0, 0), 0))           # flush all tables
print(tried(0, 25, struct.pack("=8BI", 2, 0, 0, 0, 255, 3, 254, 2, 0), 0))  # delete the route
print(tried(0, 16, struct.pack("=BxHiII", 0, 0, 1, 0, 1), 0))             # set lo down
"""

    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        exits = await taken(yard, instance)
        try:
            status, printed = await run(instance, "python3", "-c", attack, user="root")
            assert status.code == 0, printed
            assert set(printed.split()) <= {b"EPERM", b"EAFNOSUPPORT", b"EACCES", b"EPROTONOSUPPORT"}, printed
            await call(instance, exits)
        finally:
            exits.close()
        await instance.kill()

    play(scene)


def test_a_name_is_asked_of_the_gateway_whatever_the_resolver_of_the_tree(play: Play) -> None:
    ask = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
for resolver in ("127.0.0.53", "127.0.0.1", "10.9.8.7"):
    s.sendto(b"who", (resolver, 53)); print(*s.recvfrom(99))
"""

    def answer(exits: Exits) -> None:
        exits.sockets[-3].settimeout(60)
        for _ in range(3):
            data, sender = exits.sockets[-3].recvfrom(99)
            exits.sockets[-3].sendto(data, sender)

    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        exits = await taken(yard, instance)
        try:
            answered = asyncio.ensure_future(asyncio.to_thread(answer, exits))
            status, printed = await run(instance, "python3", "-c", ask)
            assert status.code == 0, printed
            wanted = (f"b'who' ('{resolver}', 53)" for resolver in ("127.0.0.53", "127.0.0.1", "10.9.8.7"))
            assert printed.decode().splitlines() == list(wanted)
            await answered
        finally:
            exits.close()
        await instance.kill()

    play(scene)


def sockets_of(pid: int) -> int:
    """Those that it has open all the while: it goes on opening and closing others."""
    count = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return count


@pytest.mark.root
def test_the_end_of_a_sandbox_ends_its_exits(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        first = await yard.create()  # with it spares are made
        supervisor = int(yard.backend.supervisor.facts["pid"])
        instance = await yard.create(exits=True)
        (await taken(yard, instance)).close()
        await instance.kill()
        with pytest.raises(SandboxDiedError):
            await yard.backend.exits(instance.id, 0)
        await first.kill()
        assert await asyncio.to_thread(wait_until, lambda: sockets_of(supervisor) <= 2 + 1 + 4 * 2)

    play(scene)


def test_what_was_asked_of_one_sandbox_is_not_given_of_another_under_its_id(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        with pytest.raises(SandboxDiedError):
            await yard.backend.exits(instance.id, 7)
        await instance.kill()

    play(scene)


@pytest.mark.root
def test_the_next_supervisor_listens_again_where_nobody_does(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        (await taken(yard, instance)).close()
        os.kill(int(yard.backend.supervisor.facts["pid"]), signal.SIGKILL)
        exits = await taken(yard, instance)
        try:
            await call(instance, exits)
        finally:
            exits.close()
        await instance.kill()

    private_play(scene)


@pytest.mark.root
def test_the_next_supervisor_leaves_the_sockets_to_a_gateway_that_has_them_and_takes_over_after_it(
    private_play: Play,
) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        exits = await taken(yard, instance)
        os.kill(int(yard.backend.supervisor.facts["pid"]), signal.SIGKILL)
        assert await yard.backend.exits(instance.id, 0) is None
        await call(instance, exits)
        exits.close()
        exits = await taken(yard, instance)
        try:
            await call(instance, exits)
        finally:
            exits.close()
        await instance.kill()

    private_play(scene)


@pytest.mark.user
def test_an_ordinary_users_next_supervisor_says_that_the_exits_are_lost(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        (await taken(yard, instance)).close()
        os.kill(int(yard.backend.supervisor.facts["pid"]), signal.SIGKILL)
        with pytest.raises(InternalError, match="can't make them anew"):
            await yard.backend.exits(instance.id, 0)
        await instance.kill()

    private_play(scene)


def test_programs_in_a_sandbox_with_exits_speak_with_each_other_as_ever(play: Play) -> None:
    both = """
import socket
for address in ("127.0.0.1", "::1"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 8080), family=family) as server:
        client = socket.create_connection((address, 8080), 30)
        accepted, peer = server.accept()
        assert peer[:2] == client.getsockname()[:2]
        accepted.sendall(b"own"); print(client.recv(9).decode())
"""

    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        status, printed = await run(instance, "python3", "-c", both)
        assert (status.code, printed) == (0, b"own\nown\n")
        await instance.kill()

    play(scene)


def test_programs_find_the_certificates_that_are_written_for_them_and_can_change_none(play: Play) -> None:
    probe = """
import os
paths = {os.environ[name] for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO")}
for path in sorted(paths | {"/etc/ssl/certs/ca-certificates.crt", "/dev/ca-certificates.jks",
    "/dev/ca-certificates.json", "/etc/chromium/policies/managed/paddock.json"}):
    print(path, open(path).read().strip())
    try: open(path, "r+")
    except OSError as error: print(error.strerror)
"""

    async def scene(yard: Yard) -> None:
        instance = await yard.create(exits=True)
        for name in (layout.TRUST, layout.TRUST_JAVA, layout.TRUST_CHROMIUM):
            (yard.state_dir / layout.RUN / instance.id / name).write_text("certificates\n")
        status, printed = await run(instance, "python3", "-c", probe)
        assert status.code == 0, printed
        lines = printed.decode().splitlines()
        assert lines[::2] == [
            "/dev/ca-certificates.jks certificates",
            "/dev/ca-certificates.json certificates",
            "/dev/ca-certificates.pem certificates",
            "/etc/chromium/policies/managed/paddock.json certificates",
            "/etc/ssl/certs/ca-certificates.crt certificates",
        ]
        assert set(lines[1::2]) <= {"Permission denied", "Read-only file system"}
        await instance.kill()
        assert not (yard.state_dir / layout.RUN / instance.id).exists()

    play(scene)


def test_links_at_the_places_of_certificates_lead_nowhere(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan(exits=True)
        first = await yard.backend.create(plan)
        swap = (
            "rm -rf /etc/ssl; mkdir /etc/ssl; ln -s ../../workspace /etc/ssl/certs; ln -s /dev/null /etc/ssl/cert.pem"
        )
        await run(first, "sh", "-c", swap)
        await first.kill()
        await yard.backend.forget(plan.id)
        second = await yard.backend.create(msgspec.structs.replace(plan, instance_id=1))
        assert (await run(second, "true"))[0].code == 0
        await second.kill()

    play(scene)
