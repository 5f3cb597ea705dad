#include "op.h"
#include "sys.h"
#include "walk.h"

enum { COPY_PIECE = 1 << 30, COPY_BUFFER = 64 << 10 };

struct copy {
    struct walk source;
    struct trail destination;
};

/* All that is left of one regular file, at its offset, to the other. By hand also what the kernel gives no bytes of: a
 * file of /proc. */
static int copy_bytes(int from, int to)
{
    char buffer[COPY_BUFFER];
    while (sys_copy_file_range(from, NULL, to, NULL, COPY_PIECE) > 0)
        ;
    for (;;) {
        long got = sys_read(from, buffer, sizeof buffer);
        if (got <= 0)
            return (int)got;
        TRY(write_all(to, buffer, (size_t)got));
    }
}

static int copy_file(int from_directory, const char *from_name, int to_directory, const char *to_name)
{
    struct statx is;
    HELD int from = TRY(sys_openat(from_directory, from_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0));
    TRY(sys_statx(from, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is));
    if (!is_regular(&is))
        return -EINVAL;
    HELD int to = TRY(sys_openat(to_directory, to_name, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600));
    TRY(copy_bytes(from, to));
    TRY(sys_fchmod(to, is.mode & 07777u));
    const struct timespec times[2] = {
        {is.accessed.seconds, is.accessed.nanoseconds},
        {is.modified.seconds, is.modified.nanoseconds},
    };
    return sys_utimensat(to, NULL, times, 0);
}

static int copy_link(int from_directory, const char *from_name, int to_directory, const char *to_name)
{
    char target[PATH_MAX];
    long size = TRY(sys_readlinkat(from_directory, from_name, target, sizeof target - 1));
    target[size] = 0;
    return sys_symlinkat(target, to_directory, to_name);
}

static int copy_one(int from_directory, const char *from_name, unsigned mode, int to_directory, const char *to_name)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return copy_file(from_directory, from_name, to_directory, to_name);
    case S_IFLNK:
        return copy_link(from_directory, from_name, to_directory, to_name);
    case S_IFIFO:
        return sys_mknodat(to_directory, to_name, S_IFIFO | (mode & 07777u), 0);
    default:
        return 0;
    }
}

/* Made open to us; its own mode comes when everything is in it. */
static int copy_down(struct copy *copy, const char *name)
{
    TRY(sys_mkdirat(trail_fd(&copy->destination), name, 0700));
    return trail_down(&copy->destination, name);
}

static int copy_entry(struct copy *copy, const struct walk_entry *entry)
{
    if (is_directory(&entry->is))
        return copy_down(copy, entry->name);
    return copy_one(entry->parent, entry->name, entry->is.mode, trail_fd(&copy->destination), entry->name);
}

static int copy_up(struct copy *copy, unsigned mode)
{
    TRY(sys_fchmod(trail_fd(&copy->destination), mode & 07777u));
    return trail_up(&copy->destination);
}

/* The directory `fd`, or one above it, is the one that `is` describes. */
static int copy_is_below(int fd, const struct statx *is)
{
    struct statx above, last = {0};
    for (HELD int at = TRY(sys_openat(fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));; last = above) {
        TRY(sys_statx(at, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &above));
        if (is_same_file(&above, is))
            return -EINVAL;
        if (is_same_file(&above, &last))
            return 0; /* the root, which is above itself */
        int next = TRY(sys_openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
        fd_close(&at);
        at = next;
    }
}

/* `directory` is where the copy is made, as `name`. */
static int copy_directory(const char *source, const struct statx *is, int directory, const char *name, struct arena *memory)
{
    struct copy *copy = arena_take(memory, sizeof *copy);
    struct walk_entry entry;
    TRY(copy ? copy_is_below(directory, is) : -ENOMEM);
    int from = TRY(sys_openat(AT_FDCWD, source, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0));
    TRY(walk_open(&copy->source, from, memory, SIZE_MAX, 0, true));
    TRY(trail_open_at(&copy->destination, directory, memory));
    TRY(copy_down(copy, name));
    for (int event; (event = TRY(walk_next(&copy->source, &entry)));)
        TRY(event == WALK_LEFT ? copy_up(copy, entry.is.mode) : copy_entry(copy, &entry));
    return copy_up(copy, is->mode);
}

int copy_tree(const char *source, const char *destination, struct arena *memory)
{
    struct statx is;
    const char *name;
    size_t size = strlen(destination);
    char *path = arena_take(memory, size + 2);
    if (!path)
        return -ENOMEM;
    memcpy(path, destination, size);
    TRY(sys_statx(AT_FDCWD, source, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is));
    path_split(path, &name);
    HELD int directory = TRY(sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    if (is_directory(&is))
        return copy_directory(source, &is, directory, name, memory);
    return copy_one(AT_FDCWD, source, is.mode, directory, name);
}
