/* The file system of a jail. A spare has /dev and /proc ready, mounted at a stage. A plan brings the rest as detached
 * mounts, whose places lie in the sandbox's tree. An earlier sandbox may have written that tree, so no path in it is
 * followed through a link. */
#include "io.h"
#include "jail.h"
#include "machine.h"

static const char *const TERMINALS = "128"; /* of the 4096 that the machine has for all (kernel.pty.max) */

struct option {
    const char *name, *value; /* no value: a flag */
};

/* Descriptors of a plan that aren't used yet. */
struct given {
    const int *fds;
    size_t left;
};

/* -1 for one too many: the kernel refuses that (EBADF). */
static int next_given(struct given *given)
{
    if (!given->left)
        return -1;
    given->left--;
    return *given->fds++;
}

static int fs_mount(const char *type, const struct option *options, size_t count, unsigned attributes)
{
    HELD int context = TRY((int)CALL2(fsopen, P(type), FSOPEN_CLOEXEC));
    for (size_t i = 0; i < count; i++)
        TRY(CALL5(fsconfig, context, options[i].value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, P(options[i].name),
                  P(options[i].value), 0));
    TRY(CALL5(fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0));
    return (int)CALL3(fsmount, context, FSMOUNT_CLOEXEC, attributes);
}

static int move_mount(int mount, int directory, const char *path)
{
    int flags = MOVE_MOUNT_F_EMPTY_PATH | (*path ? 0 : MOVE_MOUNT_T_EMPTY_PATH);
    return (int)CALL5(move_mount, mount, P(""), directory, P(path), flags);
}

/* A copy of the mount at `path`. */
static int copy_tree(int directory, const char *path, int flags)
{
    return (int)CALL3(open_tree, directory, P(path), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW | flags);
}

static int put(int mount, int directory, const char *path)
{
    HELD int held = TRY(mount);
    return move_mount(held, directory, path);
}

/* Of a spare */

/* In the directory `setup.stage`. */
static int open_part(const struct setup_message *setup, const char *name)
{
    char stage[PATH_MAX + 1], path[PATH_MAX + 8];
    (void)JOIN(path, sizeof path, text_in(stage, sizeof stage, setup->stage), name);
    return sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

int stage_open(const struct setup_message *setup, struct stage *stage)
{
    char path[PATH_MAX + 1];
    stage->root = TRY(open_part(setup, "/root"));
    stage->dev_place = TRY(open_part(setup, "/dev"));
    stage->proc_place = TRY(open_part(setup, "/proc"));
    stage->told = TRY(open_part(setup, "/told"));
    (void)text_in(path, sizeof path, setup->dev);
    stage->dev = TRY(copy_tree(AT_FDCWD, path, setup->flags & SETUP_SHARED ? AT_RECURSIVE : 0));
    return 0;
}

static int put_terminals(int dev)
{
    static const struct option options[] = {{"newinstance", NULL}, {"ptmxmode", "0666"}, {"mode", "0620"}, {"max", TERMINALS}};
    return put(fs_mount("devpts", options, ARRAY_SIZE(options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC), dev, "pts");
}

static int mask(const struct setup_message *setup, int proc, int told)
{
    struct reader masks = setup->masks;
    while (masks.left) {
        const char *name = next_string(&masks);
        TRY(put(copy_tree(told, masks.left ? next_string(&masks) : "", 0), proc, name));
    }
    return 0;
}

/* /proc is read-only inside as a whole: that covers /proc/sys, sysrq-trigger, irq, pressure and additions of later
 * kernels. WRITABLE_PROC becomes another mount of the same file system. With an additional file system for each
 * sandbox, the kernel would need more memory and time for each control group (alloc_shrinker_info,
 * memcg_reparent_list_lrus). */
static int mount_proc(const struct setup_message *setup, struct stage *stage)
{
    static const struct mount_attributes read_only = {.set = MOUNT_ATTR_RDONLY};
    stage->proc = TRY(fs_mount("proc", NULL, 0, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
    TRY(move_mount(stage->proc, stage->proc_place, ""));
    HELD int writable = TRY(copy_tree(stage->proc, "", AT_EMPTY_PATH));
    TRY(sys_dup3(writable, WRITABLE_PROC, O_CLOEXEC));
    TRY(CALL5(mount_setattr, stage->proc, P(""), AT_EMPTY_PATH, P(&read_only), sizeof read_only));
    return mask(setup, stage->proc, stage->told);
}

int stage_mount(const struct setup_message *setup, struct stage *stage)
{
    TRY(move_mount(stage->dev, stage->dev_place, ""));
    TRY(put_terminals(stage->dev));
    TRY(mount_proc(setup, stage));
    fd_close(&stage->dev_place);
    fd_close(&stage->proc_place);
    fd_close(&stage->told);
    return 0;
}

/* Of a plan */

static int open_place(const char *path)
{
    const struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    return (int)CALL4(openat2, AT_FDCWD, P(path), P(&how), sizeof how);
}

static int attach(int mount, const char *path)
{
    HELD int place = TRY(open_place(path));
    return move_mount(mount, place, "");
}

static int attach_root(const struct stage *stage, const struct plan_message *plan, int root)
{
    if (plan->hostname.left)
        TRY(CALL2(sethostname, P(plan->hostname.at), (long)plan->hostname.left));
    TRY(move_mount(root, stage->root, ""));
    return (int)CALL1(fchdir, root);
}

/* The machine's /usr, with the tree's own /usr/local in it. */
static int attach_usr(int usr)
{
    HELD int place = TRY(open_place("usr/local"));
    HELD int local = TRY(copy_tree(place, "", AT_EMPTY_PATH));
    TRY(attach(usr, "usr"));
    return attach(local, "usr/local");
}

static int attach_memory(const char *path, uint64_t size, uint64_t inodes)
{
    char bytes[DECIMAL_SIZE], count[DECIMAL_SIZE];
    const struct option options[] = {{"mode", "1777"}, {"size", decimal(bytes, size)}, {"nr_inodes", decimal(count, inodes)}};
    HELD int made = TRY(fs_mount("tmpfs", options, ARRAY_SIZE(options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
    return attach(made, path);
}

/* The staged one isn't used if the plan brings another. */
static int attach_dev(const struct stage *stage, const struct plan_message *plan, struct given *given)
{
    bool own = plan->flags & PLAN_OWN_DEV;
    int dev = own ? next_given(given) : stage->dev;
    TRY(attach(dev, "dev"));
    if (own)
        TRY(put_terminals(dev));
    return attach_memory("dev/shm", plan->tmp_bytes / 2, plan->inodes);
}

/* Files over those of /proc, /sys where the tree has that directory, and control groups in it. */
static int attach_sizes(const struct plan_message *plan, struct given *given)
{
    char path[PATH_MAX];
    struct reader files = plan->proc, groups = plan->groups;
    while (files.left)
        TRY(move_mount(next_given(given), AT_FDCWD, JOIN(path, sizeof path, "proc/", next_string(&files))));
    if (!given->left)
        return 0;
    int sys = next_given(given), result = attach(sys, "sys");
    if (result == -ENOENT || result == -ENOTDIR || result == -ELOOP)
        return 0;
    while (!result && groups.left)
        result = move_mount(next_given(given), sys, next_string(&groups));
    return result;
}

/* By pivot_root(2) with the same place for both roots: the old one then lies over the new one. */
static int pivot(void)
{
    TRY(CALL2(pivot_root, P("."), P(".")));
    TRY(CALL2(umount2, P("."), MNT_DETACH));
    return sys_chdir("/");
}

void stage_attach(struct stage *stage, const struct plan_message *plan, const int *fds, size_t count, struct steps *steps)
{
    struct given given = {fds, count};
    step(steps, "root", attach_root(stage, plan, next_given(&given)));
    step(steps, "usr", plan->flags & PLAN_HOST_USR ? attach_usr(next_given(&given)) : 0);
    step(steps, "dev", attach_dev(stage, plan, &given));
    step(steps, "proc", attach(stage->proc, "proc"));
    step(steps, "tmp", attach_memory("tmp", plan->tmp_bytes, plan->inodes));
    step(steps, "sizes", attach_sizes(plan, &given));
    step(steps, "pivot", pivot());
    fd_close(&stage->root);
    fd_close(&stage->dev);
    fd_close(&stage->proc);
}
