/* A separate root directory with some files in it, for a target whose requests change files. */
#pragma once

#include "../arena.h"
#include "../sys.h"
#include "../walk.h"

enum { ABOVE = 900 }; /* descriptors that stay. Those of one input are below */

static struct {
    struct arena cleaner;
    int root, here, files, null, descriptors, free;
} world;

static int moved(int fd)
{
    int above = sys_fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);
    must(above >= 0);
    fd_close(&fd);
    return above;
}

static void put(const char *path, const char *text)
{
    int fd = sys_openat(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    must(fd >= 0 && !write_all(fd, text, strlen(text)));
    fd_close(&fd);
}

/* Without a user namespace only root may change its root directory. */
static void take_power(void)
{
    char map[DECIMAL_SIZE + 8] = "0 ", *end = map + 2;
    uint64_t uid = (uint64_t)CALL0(getuid);
    if (uid) {
        must(!CALL1(unshare, CLONE_NEWUSER));
        (void)decimal(end, uid);
        memcpy(end + strlen(end), " 1", 3);
        put("/proc/self/uid_map", map);
    }
}

/* Of a target beside the network's. In a pid namespace libFuzzer is pid 1, and signals to all reach only its children. */
#ifndef NAMESPACES
#define NAMESPACES 0
#endif

int fork(void);

static void be_first(void)
{
    int status = 1, pid = fork();
    must(pid >= 0);
    if (pid) {
        must(CALL4(wait4, pid, P(&status), 0, 0) == pid);
        sys_exit(status & 0x7f ? 1 : status >> 8 & 0xff);
    }
    (void)sys_prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* libFuzzer calls this before it has a second thread: a process with two gets no user namespace (unshare(2)). */
int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    take_power();
    must(!CALL1(unshare, CLONE_NEWNET | NAMESPACES));
    if (NAMESPACES & CLONE_NEWPID)
        be_first();
    return 0;
}

static void world_open(void)
{
    must(!arena_open(&world.cleaner, OP_MEMORY));
    world.root = moved(sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    world.here = moved(sys_openat(AT_FDCWD, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    world.null = moved(sys_openat(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0));
    world.descriptors = moved(sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    world.free = sys_openat(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
}

static void make(const char *path, const char *text)
{
    int fd = sys_openat(world.files, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    (void)write_all(fd, text, strlen(text));
    fd_close(&fd);
}

static void world_remove(void)
{
    world.cleaner.used = 0;
    (void)remove_tree(world.here, "world", &world.cleaner);
}

static void world_begin(void)
{
    world_remove();
    must(!sys_mkdirat(world.here, "world", 0755));
    world.files = moved(sys_openat(world.here, "world", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    must(!sys_mkdirat(world.files, "d", 0755) && !sys_mkdirat(world.files, "d/e", 0700));
    make("f", "one\ntwo\xff\n");
    make("d/g", "");
    must(!sys_linkat(world.files, "f", world.files, "d/e/h", 0) && !sys_symlinkat("../f", world.files, "d/l"));
    must(!sys_symlinkat("/", world.files, "d/r") && !sys_mknodat(world.files, "p", S_IFIFO | 0600, 0));
    must((int)CALL1(fchdir, world.files) == 0 && (int)CALL1(chroot, P(".")) == 0);
}

static void world_end(void)
{
    must((int)CALL1(fchdir, world.root) == 0 && (int)CALL1(chroot, P(".")) == 0 && (int)CALL1(fchdir, world.here) == 0);
    (void)sys_close_range((unsigned)world.free, ABOVE - 1, 0);
    fd_close(&world.files);
}
