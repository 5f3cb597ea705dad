#include "op.h"
#include "sys.h"
#include "walk.h"

enum { REMOVE_BUFFER = 16 << 10, REMOVE_ROUNDS = 1000 };

int remove_one(int directory, const char *name)
{
    int error = sys_unlinkat(directory, name, 0);
    if (error == -EPERM) { /* what POSIX says of a directory; or it is not ours to remove */
        struct statx is;
        int unseen = sys_statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is);
        if (!unseen && is_directory(&is))
            error = -EISDIR;
    }
    if (error != -EISDIR)
        return error;
    error = sys_unlinkat(directory, name, AT_REMOVEDIR);
    return error == -EEXIST ? -ENOTEMPTY : error;
}

/* By a descriptor: the name may have become a link. */
static int remove_open_up(int directory, const char *name)
{
    char path[PATH_FD];
    HELD int held = TRY(sys_openat(directory, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0));
    return sys_fchmodat(AT_FDCWD, path_of_fd(held, path), 0700);
}

/* Its mode protects a directory's owner from mistakes, not from the removal of all that is in it. */
static int remove_down(struct trail *trail, const char *name)
{
    struct statx is;
    int error = trail_down(trail, name);
    if (error == -EACCES) {
        error = remove_open_up(trail_fd(trail), name);
        if (!error)
            error = trail_down(trail, name);
    }
    if (!error && !sys_statx(trail_fd(trail), "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is) && (is.mode & 0700) != 0700)
        (void)sys_fchmod(trail_fd(trail), 0700);
    return error;
}

/* Removes what it can of the directory that the trail has come to. 0: it is empty; 1: `*full` is a directory with
 * something in it; or -errno. A directory may be filled while it is emptied, so there is a last round. */
static int remove_from(int directory, char *buffer, const char **full)
{
    for (int round = 0; round < REMOVE_ROUNDS; round++) {
        struct listing listing = {.fd = directory, .buffer = buffer, .size = REMOVE_BUFFER};
        const struct directory_entry *entry;
        bool any = false;
        (void)TRY(sys_lseek(directory, 0, SEEK_SET));
        while (TRY(listing_next(&listing, &entry))) {
            int result = remove_one(directory, entry->name);
            *full = entry->name;
            if (result && result != -ENOENT)
                return result == -ENOTEMPTY ? 1 : result;
            any = true;
        }
        if (!any)
            return 0;
    }
    return -ENOTEMPTY;
}

int remove_tree(int directory, const char *name, struct arena *memory)
{
    char buffer[REMOVE_BUFFER] __attribute__((aligned(8)));
    const char *full = name;
    struct trail trail;
    int error = remove_one(directory, name);
    if (error != -ENOTEMPTY)
        return error;
    TRY(trail_open_at(&trail, directory, memory));
    error = remove_down(&trail, name);
    while (!error) {
        error = remove_from(trail_fd(&trail), buffer, &full);
        if (error == 1) {
            error = remove_down(&trail, full);
            if (error == -ENOENT || error == -ENOTDIR) /* it has become something else: the next round sees */
                error = 0;
            continue;
        }
        if (error)
            break;
        const char *left = trail_name(&trail, trail.depth); /* stays until the next way down */
        error = trail_up(&trail);
        if (!error)
            error = remove_one(trail_fd(&trail), left);
        if (error == -ENOENT || (error == -ENOTEMPTY && trail.depth)) /* a program has put something there: another pass */
            error = 0;
        if (!trail.depth)
            break;
    }
    trail_close(&trail);
    return error;
}
