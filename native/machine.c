#include "machine.h"
#include "io.h"

enum { TRIES = 12000, SETTINGS = 1 << 12 };
static const uint64_t PAUSE = 5000000u; /* a device appears some time after its driver */
#define GROUP "/sys/fs/cgroup/sandbox"

struct machine the_machine;

/* The root directory is an overlay. Below is a read-only view of template and programs, above an empty disk of the
 * sandbox. */
static const struct mounted {
    const char *source, *target, *kind;
    unsigned long flags;
    const char *options;
} FIRST[] = {
    {"sysfs", "/sys", "sysfs", 0, NULL},
    {"devtmpfs", "/dev", "devtmpfs", 0, NULL},
}, ROOT[] = {
    {"proc", "/root/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
    {"sysfs", "/root/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL},
    {"devtmpfs", "/root/dev", "devtmpfs", MS_NOSUID | MS_NOEXEC, NULL},
    {"devpts", "/root/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=620,gid=5,ptmxmode=666"},
    {"tmpfs", "/root/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
    {"tmpfs", "/root/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
    {"tmpfs", "/root/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"},
    {"tmpfs", "/root/run/lock", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
    {"cgroup2", "/root/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
};
static const struct {
    const char *name, *target;
} LINKS[] = {
    {"/root/dev/fd", "/proc/self/fd"}, {"/root/dev/stdin", "fd/0"}, {"/root/dev/stdout", "fd/1"}, {"/root/dev/stderr", "fd/2"},
};

int machine_mount(const char *source, const char *target, const char *kind, unsigned long flags, const char *options)
{
    TRY(path_make(AT_FDCWD, target));
    return sys_mount(source, target, kind, flags, options);
}

/* "/modules/0", "/modules/1"…: in this order. Their bytes are memory, and unneeded afterwards. */
static int load_modules(void)
{
    char path[64] = "/modules/";
    for (uint64_t i = 0;; i++) {
        (void)decimal(path + 9, i);
        HELD int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
        if (fd == -ENOENT)
            return 0;
        TRY(fd);
        TRY(CALL3(finit_module, fd, P(""), 0));
        (void)sys_unlinkat(AT_FDCWD, path, 0);
    }
}

/* Calls `look` with each name in `directory` until it says that all is found. */
static int look_for(const char *directory, bool (*look)(void *context, const char *name), void *context)
{
    _Alignas(8) char buffer[4096];
    for (unsigned tries = 0; tries < TRIES; tries++) {
        HELD int fd = sys_openat(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        struct listing listing = {.fd = fd, .buffer = buffer, .size = sizeof buffer};
        const struct directory_entry *entry;
        while (fd >= 0 && listing_next(&listing, &entry) > 0)
            if (look(context, entry->name))
                return 0;
        sys_sleep(PAUSE);
    }
    return -ENODEV;
}

/* A file of a device's, without its line's end. */
static void describe(char to[64], const char *directory, const char *name, const char *file)
{
    char path[PATH_MAX];
    memset(to, 0, 64);
    (void)read_file(AT_FDCWD, JOIN(path, PATH_MAX, directory, name, file), to, 63);
    for (char *at = to; *at; at++)
        if (*at == '\n')
            *at = 0;
}

/* The two block devices: the view can only be read. Not every host can name them. */
struct disks {
    char view[PATH_MAX], disk[PATH_MAX];
};

static bool is_disk(void *context, const char *name)
{
    struct disks *disks = context;
    char read_only[64];
    if (memcmp(name, "vd", 2))
        return false;
    describe(read_only, "/sys/block/", name, "/ro");
    if (!strcmp(read_only, "1"))
        (void)JOIN(disks->view, PATH_MAX, "/dev/", name);
    else if (!strcmp(read_only, "0"))
        (void)JOIN(disks->disk, PATH_MAX, "/dev/", name);
    return disks->view[0] && disks->disk[0];
}

struct port {
    const char *name;
    int fd;
};

static bool is_port(void *context, const char *name)
{
    struct port *port = context;
    char called[64], path[PATH_MAX];
    describe(called, "/sys/class/virtio-ports/", name, "/name");
    if (strcmp(called, port->name))
        return false;
    port->fd = sys_openat(AT_FDCWD, JOIN(path, PATH_MAX, "/dev/", name), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    return port->fd >= 0; /* its node appears some time after its name */
}

/* The virtio port of that name. No other process can open it from then on. */
static int open_port(const char *name)
{
    struct port port = {name, -1};
    int result = look_for("/sys/class/virtio-ports", is_port, &port);
    return result ? result : port.fd;
}

static int mount_root(const struct disks *disks)
{
    struct statx top;
    TRY(machine_mount(disks->view, "/view", "erofs", MS_RDONLY | MS_NODEV, NULL));
    TRY(machine_mount(disks->disk, "/disk", "ext4", MS_NODEV, "noauto_da_alloc,init_itable=0"));
    TRY(path_make(AT_FDCWD, "/disk/upper"));
    TRY(path_make(AT_FDCWD, "/disk/work"));
    TRY(sys_statx(AT_FDCWD, "/view", 0, STATX_BASIC_STATS, &top));
    TRY(sys_fchownat(AT_FDCWD, "/disk/upper", top.uid, top.gid, 0));
    TRY(sys_fchmodat(AT_FDCWD, "/disk/upper", top.mode & 07777));
    return machine_mount("overlay", "/root", "overlay", 0,
                         "lowerdir=/view,upperdir=/disk/upper,workdir=/disk/work,redirect_dir=on");
}

static int enter_root(void)
{
    TRY(sys_chdir("/root"));
    TRY(sys_mount(".", "/", NULL, MS_MOVE, NULL));
    TRY((int)CALL1(chroot, P(".")));
    return sys_chdir("/");
}

/* One control group for all that the sandbox runs. */
static int make_group(void)
{
    TRY(path_make(AT_FDCWD, GROUP));
    TRY(write_file(AT_FDCWD, "/sys/fs/cgroup/cgroup.subtree_control", "+pids"));
    (void)write_file(AT_FDCWD, "/sys/fs/cgroup/cgroup.subtree_control", "+memory"); /* only to name the limit */
    return write_file(AT_FDCWD, GROUP "/cgroup.procs", "1");
}

static int mount_all(const struct mounted *mounts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        TRY(machine_mount(mounts[i].source, mounts[i].target, mounts[i].kind, mounts[i].flags, mounts[i].options));
    return 0;
}

/* Returns the port on which the host speaks, or -errno and what was tried. */
static int settle(const char **step)
{
    static struct disks disks;
    *step = "modules";
    TRY(load_modules());
    *step = "devices";
    TRY(mount_all(FIRST, ARRAY_SIZE(FIRST)));
    *step = "disks";
    TRY(look_for("/sys/block", is_disk, &disks));
    *step = "ports";
    int port = TRY(open_port("paddock.line"));
    the_machine.files = TRY(open_port("paddock.files"));
    *step = "root";
    TRY(mount_root(&disks));
    *step = "places";
    TRY(mount_all(ROOT, ARRAY_SIZE(ROOT)));
    for (size_t i = 0; i < ARRAY_SIZE(LINKS); i++)
        TRY(sys_symlinkat(LINKS[i].target, AT_FDCWD, LINKS[i].name));
    TRY(enter_root());
    *step = "control group";
    TRY(make_group());
    *step = "network";
    TRY(network_up("lo", true));
    TRY(write_file(AT_FDCWD, "/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")); /* for every user, as at other levels */
    return port;
}

/* To the console, which is the host's. */
static void complain(const char *step, int result)
{
    char text[PATH_MAX], number[DECIMAL_SIZE];
    (void)JOIN(text, PATH_MAX, "no machine: ", step, ": errno ", decimal(number, (uint64_t)-result), "\n");
    (void)sys_write(2, text, strlen(text));
}

int machine_run(struct agent *child)
{
    const char *step;
    struct init *init;
    the_machine.online = -1;
    int port = settle(&step);
    int result = port < 0 ? port : init_prepare(child, &init);
    if (!result) {
        init->machine = true;
        step = "port";
        int writer = sys_fcntl(port, F_DUPFD_CLOEXEC, 3);
        result = writer < 0 ? writer : init_trunk_begin(init, port, writer);
    }
    if (result) {
        complain(step, result);
        return result;
    }
    loop_run(&init->agent.loop);
    return -ECANCELED;
}
