/* Pid 1 of a virtual machine for tests. For a line NAME on its console it starts the guest as pid 1 of a machine, again and
 * again in one boot: in new namespaces, under that name. For a line without a name it ends that. It says "ended STATUS",
 * and forgets what was set up. As a command inside the machine it shows the files it is given. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void show(const char *path)
{
    static char text[1 << 16];
    ssize_t got = readlink(path, text, sizeof text);
    int fd = got < 0 ? open(path, O_RDONLY) : -1;
    struct dirent **names;
    printf("%s:\n", path);
    if (fd >= 0)
        got = read(fd, text, sizeof text);
    printf("%.*s\n", got > 0 ? (int)got : 0, text);
    for (int i = 0, count = fd < 0 ? 0 : scandir(path, &names, NULL, alphasort); i < count; i++) {
        struct stat is;
        fstatat(fd, names[i]->d_name, &is, AT_SYMLINK_NOFOLLOW);
        printf("%s %o %u %u\n", names[i]->d_name, is.st_mode, is.st_uid, is.st_gid);
    }
    close(fd);
}

static void set(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        printf("%s stays\n", path);
    close(fd);
}

static void take_down(const char *interface)
{
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    strcpy(request.ifr_name, interface);
    ioctl(fd, SIOCSIFFLAGS, &request);
    close(fd);
}

/* What of a machine outlives its pid 1 as long as the kernel does. */
static void forget(void)
{
    static const char *const gone[] = {"/t/fd", "/t/stdin", "/t/stdout", "/t/stderr"};
    mkdir("/t", 0700);
    mount("t", "/t", "devtmpfs", 0, NULL);
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        unlink(gone[i]);
    umount("/t");
    mount("t", "/t", "cgroup2", 0, NULL);
    rmdir("/t/sandbox");
    set("/t/cgroup.subtree_control", "-pids -memory");
    umount("/t");
    mount("t", "/t", "proc", 0, NULL);
    set("/t/sys/net/ipv4/ip_unprivileged_port_start", "1024");
    umount("/t");
    take_down("lo");
    take_down("eth0");
}

static int start(const char *name)
{
    int pid = (int)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0);
    if (!pid) {
        execl("/machine", name, (char *)NULL);
        _exit(126);
    }
    return pid;
}

static void serve(int pid)
{
    int status, process = (int)syscall(SYS_pidfd_open, pid, 0);
    char line[256];
    struct pollfd polls[2] = {{process, POLLIN, 0}, {0, POLLIN, 0}};
    poll(polls, 2, -1);
    if (!polls[0].revents && fgets(line, sizeof line, stdin))
        kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(process);
    forget();
    printf("ended %d\n", status);
}

int main(int argc, char **argv)
{
    char line[256];
    setvbuf(stdin, NULL, _IONBF, 0);
    for (int i = 1; i < argc; i++)
        show(argv[i]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (getpid() == 1)
        printf("ended 0\n"); /* of none before */
    while (getpid() == 1 && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (*line) /* else the one to end has ended */
            serve(start(line));
    }
    printf("all\n");
    return 0;
}
