/* The least that the kernel charges for a sandbox: the system calls of a create, a command and a destroy, and
 * nothing else. No Python, no daemon, no record, no audit, no policy, no terminals, no files, no error paths.
 *
 *     floor DIRECTORY [PART ...]
 *
 * DIRECTORY is described in floor.py, which makes it. Each PART is left out: groups, network, mounts, masks, agent,
 * seccomp. Each byte on standard input is a step, whose nanoseconds it writes as a line: `+` makes a sandbox, `c` runs
 * a command in the newest, `-` destroys the newest. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TREES = 12, SETTINGS = 16, MASKS = 64, SANDBOXES = 4096, BYTES = 1 << 16, BIND = 4096, REC = 16384, PRIVATE = 1 << 18, DETACH = 2 };

struct setting {
    int tree;
    char file[64], value[64];
};

struct sandbox {
    int pid, pidfd, told;
    char name[16]; /* of its group and of its directory */
};

static struct sandbox sandboxes[SANDBOXES];
static int living;
static int trees[TREES], tree_count, unified = -1, setting_count, mask_count;
static struct setting settings[SETTINGS];
static char masks[MASKS][64];
static unsigned char instructions[BYTES];
static struct sock_fprog filter = {0, (struct sock_filter *)instructions};
static bool groups = true, network = true, mounts = true, masking = true, agent = true, seccomp = true;

#define CHECK(call) check((long)(call), #call)

static long check(long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        _exit(1);
    }
    return result;
}

static void put(int directory, const char *path, const char *text)
{
    int fd = (int)CHECK(openat(directory, path, O_WRONLY | O_CLOEXEC));
    CHECK(write(fd, text, strlen(text)));
    close(fd);
}

static void put_maps(int pid, const char *map)
{
    static const char *const names[] = {"uid_map", "gid_map"};
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/%s", pid, names[i]);
        put(AT_FDCWD, path, map);
    }
}

/* Mounts */

static int fs_mount(const char *type, const char *const options[][2], unsigned attributes)
{
    int context = (int)CHECK(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC));
    for (int i = 0; options[i][0]; i++)
        CHECK(syscall(SYS_fsconfig, context, options[i][1] ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, options[i][0], options[i][1], 0));
    CHECK(syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
    int mount = (int)CHECK(syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, attributes));
    close(context);
    return mount;
}

static int copy_of(const char *path)
{
    return (int)CHECK(syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
}

static void attach(int mount, const char *path)
{
    CHECK(syscall(SYS_move_mount, mount, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH));
    close(mount);
}

static int overlay(const char *upper, const char *work)
{
    const char *const options[][2] = {{"lowerdir", "/rootfs"}, {"upperdir", upper}, {"workdir", work}, {"volatile", NULL}, {NULL, NULL}};
    return fs_mount("overlay", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

static void mount_all(int root)
{
    static const char *const none[][2] = {{NULL, NULL}};
    static const char *const terminals[][2] = {{"newinstance", NULL}, {"ptmxmode", "0666"}, {NULL, NULL}};
    static const char *const memory[][2] = {{"mode", "1777"}, {"size", "64m"}, {NULL, NULL}};
    const unsigned strict = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    attach(root, "/mnt");
    attach(copy_of("/dev"), "/mnt/dev");
    attach(fs_mount("devpts", terminals, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC), "/mnt/dev/pts");
    attach(fs_mount("tmpfs", memory, strict), "/mnt/dev/shm");
    attach(fs_mount("tmpfs", memory, strict), "/mnt/tmp");
    attach(fs_mount("proc", none, strict | MOUNT_ATTR_NOEXEC), "/mnt/proc");
    for (int i = 0; masking && i < mask_count; i++) {
        char path[96] = "/mnt/proc/";
        struct stat info;
        strcat(path, masks[i]);
        CHECK(lstat(path, &info));
        attach(copy_of(S_ISDIR(info.st_mode) ? "/nothing" : "/empty"), path);
    }
}

static void move_to(const char *place)
{
    CHECK(chdir(place));
    CHECK(syscall(SYS_pivot_root, ".", "."));
    CHECK(syscall(SYS_umount2, ".", DETACH));
    CHECK(chdir("/"));
}

/* Inside */

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    CHECK(syscall(SYS_capset, &header, none));
}

static void run_command(int told)
{
    static char *const argv[] = {"true", NULL}, *const environment[] = {NULL};
    int status, pid = vfork();
    if (!pid) {
        execve("/bin/true", argv, environment);
        _exit(127);
    }
    CHECK(pid);
    CHECK(waitpid(pid, &status, 0));
    CHECK(write(told, status ? "f" : "t", 1));
}

static void be_agent(int told)
{
    if (mounts) { /* else nobody could write the id maps: that takes a /proc of this pid namespace */
        CHECK(syscall(SYS_setresgid, 1000, 1000, 1000));
        CHECK(syscall(SYS_setresuid, 1000, 1000, 1000));
    }
    drop_capabilities();
    if (seccomp)
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    CHECK(write(told, "r", 1));
    for (char byte; read(told, &byte, 1) == 1;)
        run_command(told);
    _exit(0);
}

static void be_init(int told, int root, const int joining[TREES])
{
    char byte;
    for (int i = 0; groups && i < tree_count; i++)
        if (i != unified)
            CHECK(write(joining[i], "0", 1));
    if (groups)
        CHECK(unshare(CLONE_NEWCGROUP));
    if (network) {
        struct ifreq card = {.ifr_name = "lo", .ifr_flags = IFF_UP};
        int fd = (int)CHECK(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        CHECK(ioctl(fd, SIOCSIFFLAGS, &card));
        close(fd);
    }
    CHECK(read(told, &byte, 1) - 1);
    CHECK(syscall(SYS_setresgid, 0, 0, 0));
    CHECK(syscall(SYS_setresuid, 0, 0, 0));
    if (mounts)
        mount_all(root);
    else
        attach(copy_of("/rootfs"), "/mnt");
    move_to("/mnt");
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(prctl(PR_SET_DUMPABLE, 1)); /* else the files of the agent in /proc belong to root outside */
    if (!agent)
        be_agent(told);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    int pid = (int)CHECK(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    if (!pid) {
        CHECK(read(pair[1], &byte, 1) - 1);
        be_agent(told);
    }
    if (mounts)
        put_maps(pid, "0 0 65536\n");
    CHECK(write(pair[0], "m", 1));
    drop_capabilities();
    for (;;)
        pause();
}

/* Outside */

static void expect(const struct sandbox *sandbox, char wanted)
{
    char byte = 0;
    CHECK(read(sandbox->told, &byte, 1) - 1);
    if (byte != wanted) {
        fprintf(stderr, "the command failed inside\n");
        _exit(1);
    }
}

static void make(struct sandbox *sandbox)
{
    int joining[TREES], told[2], root = -1, place = -1;
    char upper[32], work[32], procs[32];
    snprintf(sandbox->name, sizeof sandbox->name, "sandbox%d", living);
    for (int i = 0; groups && i < tree_count; i++)
        CHECK(mkdirat(trees[i], sandbox->name, 0755));
    for (int i = 0; groups && i < setting_count; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", sandbox->name, settings[i].file);
        put(trees[settings[i].tree], path, settings[i].value);
    }
    snprintf(procs, sizeof procs, "%s/cgroup.procs", sandbox->name);
    for (int i = 0; groups && i < tree_count; i++)
        joining[i] = (int)CHECK(openat(trees[i], procs, O_WRONLY | O_CLOEXEC));
    if (mounts) {
        snprintf(upper, sizeof upper, "/%s/upper", sandbox->name);
        snprintf(work, sizeof work, "/%s/work", sandbox->name);
        CHECK(mkdir(sandbox->name, 0755));
        CHECK(mkdir(upper, 0755));
        CHECK(mkdir(work, 0755));
        root = overlay(upper, work);
    }
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, told));
    struct clone_args order = {
        .flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_PIDFD,
        .pidfd = (__u64)(unsigned long)&sandbox->pidfd,
        .exit_signal = SIGCHLD,
    };
    if (network)
        order.flags |= CLONE_NEWNET;
    if (groups && unified >= 0) {
        place = (int)CHECK(openat(trees[unified], sandbox->name, O_PATH | O_DIRECTORY | O_CLOEXEC));
        order.flags |= CLONE_INTO_CGROUP;
        order.cgroup = (__u64)place;
    }
    sandbox->pid = (int)CHECK(syscall(SYS_clone3, &order, sizeof order));
    if (!sandbox->pid) {
        for (int i = 0; i < living; i++)
            close(sandboxes[i].told), close(sandboxes[i].pidfd);
        close(told[0]);
        be_init(told[1], root, joining);
    }
    sandbox->told = told[0];
    close(told[1]);
    close(place);
    close(root);
    for (int i = 0; groups && i < tree_count; i++)
        close(joining[i]);
    put_maps(sandbox->pid, "0 100000 65536\n");
    CHECK(write(sandbox->told, "m", 1));
    expect(sandbox, 'r');
}

static void command(const struct sandbox *sandbox)
{
    CHECK(write(sandbox->told, "c", 1));
    expect(sandbox, 't');
}

static void destroy(const struct sandbox *sandbox)
{
    static const char *const directories[] = {"work/work/incompat/volatile", "work/work/incompat", "work/work", "work", "upper"};
    CHECK(syscall(SYS_pidfd_send_signal, sandbox->pidfd, SIGKILL, NULL, 0));
    CHECK(waitpid(sandbox->pid, NULL, 0));
    close(sandbox->pidfd);
    close(sandbox->told);
    for (int i = 0; groups && i < tree_count; i++)
        CHECK(unlinkat(trees[i], sandbox->name, AT_REMOVEDIR));
    if (!mounts)
        return;
    char path[64];
    snprintf(path, sizeof path, "%s/work/work/incompat/volatile/dirty", sandbox->name);
    (void)!unlink(path);
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        snprintf(path, sizeof path, "%s/%s", sandbox->name, directories[i]);
        (void)!rmdir(path); /* the first two are there with a volatile overlay only */
    }
    CHECK(rmdir(sandbox->name));
}

static void step(char which)
{
    if (which == '+' && living < SANDBOXES) {
        make(&sandboxes[living]);
        living++;
    } else if (which == 'c' && living) {
        command(&sandboxes[living - 1]);
    } else if (which == '-' && living) {
        destroy(&sandboxes[--living]);
    } else {
        fprintf(stderr, "there is no step '%c' here\n", which);
        _exit(2);
    }
}

static void read_trees(void)
{
    char path[512], file[64], value[64];
    FILE *lines = fopen("trees", "re");
    while (lines && fscanf(lines, "%511s", path) == 1) {
        if (!strcmp(path, "set")) {
            if (fscanf(lines, "%63s %63[^\n]", file, value) != 2 || setting_count == SETTINGS)
                _exit(1);
            struct setting *setting = &settings[setting_count++];
            setting->tree = tree_count - 1;
            memcpy(setting->file, file, sizeof file);
            memcpy(setting->value, value, sizeof value);
        } else if (tree_count < TREES) {
            struct stat info;
            int fd = (int)CHECK(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC));
            if (!fstatat(fd, "cgroup.controllers", &info, 0))
                unified = tree_count;
            trees[tree_count++] = fd;
            put(fd, "program/cgroup.procs", "0");
        }
    }
}

static void read_rest(void)
{
    FILE *lines = fopen("masks", "re");
    while (lines && mask_count < MASKS && fscanf(lines, "%63s", masks[mask_count]) == 1)
        mask_count++;
    int fd = (int)CHECK(open("filter", O_RDONLY | O_CLOEXEC));
    filter.len = (unsigned short)(CHECK(read(fd, instructions, sizeof instructions)) / (long)sizeof *filter.filter);
}

/* DIRECTORY becomes the root directory, so that a clone copies few mounts. */
static void move_in(void)
{
    CHECK(unshare(CLONE_NEWNS));
    CHECK(syscall(SYS_mount, NULL, "/", NULL, REC | PRIVATE, NULL));
    CHECK(syscall(SYS_mount, ".", ".", NULL, BIND, NULL));
    char *place = getcwd(NULL, 0);
    CHECK(chdir(place)); /* into the mount, which lies over where we are */
    CHECK(syscall(SYS_mount, "/proc", "proc", NULL, BIND, NULL));
    CHECK(syscall(SYS_mount, "devices", "dev", NULL, BIND, NULL));
    move_to(".");
    (void)umask(022);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        bool *part;
    } parts[] = {{"groups", &groups}, {"network", &network}, {"mounts", &mounts}, {"masks", &masking}, {"agent", &agent}, {"seccomp", &seccomp}};
    if (count < 2)
        return 2;
    CHECK(chdir(words[1]));
    for (int i = 2; i < count; i++)
        for (size_t n = 0; n < sizeof parts / sizeof *parts; n++)
            if (!strcmp(words[i], parts[n].name))
                *parts[n].part = false;
    read_trees();
    read_rest();
    move_in();
    char byte;
    while (read(0, &byte, 1) == 1) {
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        step(byte);
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("%lld\n", (end.tv_sec - start.tv_sec) * 1000000000ll + end.tv_nsec - start.tv_nsec);
        fflush(stdout);
    }
    while (living)
        step('-');
    return 0;
}
