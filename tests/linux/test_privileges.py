from __future__ import annotations

import os
import resource
import signal

import pytest

from paddock.linux import caps, children, confine, namespaces, prctl, proc

from .child import run_in_child


@pytest.mark.root
def test_dropping_all_capabilities_leaves_none() -> None:
    def body() -> None:
        assert caps.get().effective
        caps.drop_all()
        assert caps.get() == (0, 0, 0)
        fields = proc.status()
        assert {int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        with pytest.raises(PermissionError):
            caps.keep_only(caps.SETUID)

    run_in_child(body)


@pytest.mark.root
def test_a_kept_set_is_exactly_that() -> None:
    def body() -> None:
        caps.keep_only(caps.SETUID, caps.SETGID, caps.SETFCAP)
        mask = caps.mask_of(caps.SETUID, caps.SETGID, caps.SETFCAP)
        assert caps.get() == (mask, mask, 0)
        assert int(proc.status()["CapEff"], 16) == mask

    run_in_child(body)


@pytest.mark.root
def test_what_left_the_bounding_set_is_gained_by_no_exec() -> None:
    def body() -> None:
        caps.drop_bounding(caps.KILL)
        assert int(proc.status()["CapBnd"], 16) == caps.mask_of(caps.KILL)
        # An exec by uid 0 would regain everything that is in the bounding set.
        argv = [b"/bin/sh", b"-c", b"grep -q 'CapEff:.*0000000020$' /proc/self/status"]
        os.execv(argv[0], argv)

    run_in_child(body)


def test_no_new_privileges_cannot_be_taken_back() -> None:
    def body() -> None:
        prctl.set_no_new_privileges()
        with pytest.raises(OSError, match="Invalid argument"):
            prctl.prctl(38, 0, what="take back")
        assert proc.status()["NoNewPrivs"] == "1"

    run_in_child(body)


def test_a_process_that_is_not_dumpable_hides_its_files_from_its_own_uid() -> None:
    def body() -> None:
        if os.getuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            assert os.stat("/proc/self/mem").st_uid == 0  # the change of uid did that
        prctl.set_dumpable(True)
        assert os.stat("/proc/self/mem").st_uid == os.getuid()
        prctl.set_dumpable(False)
        assert os.stat("/proc/self/mem").st_uid == 0
        with pytest.raises(PermissionError):
            os.open("/proc/self/mem", os.O_RDONLY)

    run_in_child(body)


def test_a_child_dies_with_its_parent() -> None:
    read_end, write_end = os.pipe()

    def parent() -> None:
        ready, told = os.pipe()
        if os.fork() == 0:
            try:
                prctl.set_parent_death_signal(signal.SIGKILL)
                os.write(told, b"x")
                signal.pause()
            finally:
                os._exit(0)
        os.read(ready, 1)

    run_in_child(parent)
    os.close(write_end)
    assert os.read(read_end, 1) == b""  # the last holder of the other end is gone
    os.close(read_end)


@pytest.mark.root
def test_capabilities_survive_a_change_of_uid_under_no_setuid_fixup() -> None:
    def body() -> None:
        prctl.set_secure_bits(prctl.SECBIT_NO_SETUID_FIXUP)
        os.setresuid(65534, 65534, 65534)
        assert caps.get().effective

    run_in_child(body)


def test_a_forked_child_has_no_descriptors_but_its_own_and_its_failure_shows() -> None:
    def body() -> None:
        lost, _ = os.pipe()
        answer, kept = os.pipe()

        def work() -> None:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(lost)
            os.write(kept, b"x")

        assert os.waitpid(children.fork(work, kept), 0)[1] == 0
        assert os.read(answer, 1) == b"x"
        assert os.waitstatus_to_exitcode(os.waitpid(children.fork(lambda: os.fstat(lost)), 0)[1]) == 1

    run_in_child(body)


@pytest.mark.root
def test_powers_that_are_given_up_are_all_but_the_named_capabilities() -> None:
    def body() -> None:
        confine.give_up_powers(caps.CHOWN)
        fields = proc.status()
        assert int(fields["CapPrm"], 16) == int(fields["CapEff"], 16) == caps.mask_of(caps.CHOWN)
        assert int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        assert os.stat("/proc/self/mem").st_uid == 0
        caps.drop_all()
        confine.give_up_powers()  # once more, with no capability to give up
        assert caps.get() == (0, 0, 0)

    run_in_child(body)


def test_a_long_name_is_cut() -> None:
    def body() -> None:
        prctl.set_name(b"a-name-of-more-than-15-bytes")
        assert proc.status()["Name"] == "a-name-of-more-"

    run_in_child(body)


def test_a_limit_above_the_hard_one_becomes_that() -> None:
    def body() -> None:
        assert confine.limit(resource.RLIMIT_NOFILE, 50) == 50
        assert confine.limit(resource.RLIMIT_NOFILE, 5000) == 50
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (50, 50)

    run_in_child(body)


@pytest.mark.root
def test_capabilities_of_a_new_user_namespace_are_full_and_end_with_it() -> None:
    def body() -> None:
        assert caps.get().effective & caps.mask_of(caps.SYS_ADMIN)
        caps.drop_all()
        with pytest.raises(PermissionError):
            namespaces.unshare(namespaces.NEWUTS)

    run_in_child(body, namespaces.NEWUSER)
