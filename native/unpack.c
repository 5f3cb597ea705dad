/* UPLOAD: an archive is unpacked below a directory, as the user. Its names are an attacker's: none leads outside, and
 * nothing is made or opened through a symbolic link, whether the archive brought it or it was there before. Owners,
 * set-id bits and devices are not taken over. */
#include "file.h"
#include "ops.h"
#include "path.h"
#include "sys.h"
#include "tar.h"
#include "trail.h"

enum {
    UNPACK_BUFFER = 256 << 10,
    UNPACK_TIMES = 16 << 20,   /* bytes for times of directories */
    UNPACK_MADE = 1 << 18,     /* files that a hard link may lead to: three quarters of so many */
    UNPACK_WORLD = 0755,
};

struct unpack_time {
    struct unpack_time *before;
    int64_t modified;
    char path[];
};

struct unpack_made {
    uint64_t inode;
    uint32_t major, minor;
};

struct unpack {
    struct op *op;
    struct tar_reader tar;
    struct trail trail;
    struct arena times;
    struct unpack_time *last;
    struct unpack_made *made; /* a table by hash; inode 0: free */
    size_t made_count;
    unsigned char buffer[UNPACK_BUFFER];
};

static int unpack_read(void *context, void *to, size_t size)
{
    return op_read(context, to, size);
}

static int unpack_refuse(struct unpack *unpack, const char *problem)
{
    unpack->op->step = problem;
    return -EILSEQ;
}

/* Names */

/* Without slashes at its ends, doubled ones and dots, in place. False: it leads outside. */
static bool unpack_tidy(char *path)
{
    char *to = path;
    if (*path == '/')
        return false;
    for (const char *at = path; *at;) {
        size_t size = part_size(at);
        if (is_part(at, size, ".."))
            return false;
        if (size && !is_part(at, size, ".")) {
            if (to > path)
                *to++ = '/';
            memmove(to, at, size);
            to += size;
        }
        at += size;
        at += *at == '/';
    }
    *to = 0;
    return true;
}

/* Moves to the directory above the last part of `path`, which is `*name` then; what is missing on the way is made if
 * `make`. */
static int unpack_enter(struct unpack *unpack, const char *path, bool make, char name[NAME_MAX + 1])
{
    struct trail *trail = &unpack->trail;
    size_t depth = 0, size = part_size(path);
    int error = 0;
    /* As far as it is the way that the trail has taken already. */
    while (path[size] && depth < trail->depth && is_part(path, size, trail_name(trail, depth + 1))) {
        path += size + 1;
        size = part_size(path);
        depth++;
    }
    while (!error && trail->depth > depth)
        error = trail_up(trail);
    for (; !error && size <= NAME_MAX; path += size + 1, size = part_size(path)) {
        memcpy(name, path, size);
        name[size] = 0;
        if (!path[size])
            return 0;
        error = trail_down(trail, name);
        if (error == -ENOENT && make) {
            error = sys_mkdirat(trail_fd(trail), name, UNPACK_WORLD);
            if (!error)
                error = trail_down(trail, name);
        }
    }
    return error ? error : -ENAMETOOLONG;
}

/* What stands where something is to be made goes away, unless it is a directory with something in it. */
static int unpack_make_room(int directory, const char *name)
{
    int error = sys_unlinkat(directory, name, 0);
    if (error == -EISDIR || error == -EPERM)
        error = sys_unlinkat(directory, name, AT_REMOVEDIR);
    return error == -ENOENT ? 0 : error;
}

/* Hard links */

static struct unpack_made *unpack_find(struct unpack *unpack, const struct statx *is)
{
    size_t at = (size_t)(is->inode * 0x9e3779b97f4a7c15u >> 32);
    for (;; at++) {
        struct unpack_made *made = &unpack->made[at % UNPACK_MADE];
        if (!made->inode || (made->inode == is->inode && made->major == is->device_major && made->minor == is->device_minor))
            return made;
    }
}

static void unpack_remember(struct unpack *unpack, const struct statx *is)
{
    if (unpack->made_count >= UNPACK_MADE / 4 * 3)
        return;
    struct unpack_made *made = unpack_find(unpack, is);
    unpack->made_count += !made->inode;
    *made = (struct unpack_made){is->inode, is->device_major, is->device_minor};
}

static int unpack_hard_link(struct unpack *unpack, const struct tar_member *member, char *path)
{
    char target[TAR_PATH], from_name[NAME_MAX + 1], name[NAME_MAX + 1];
    struct statx is, there;
    memcpy(target, member->target, strlen(member->target) + 1);
    if (!unpack_tidy(target) || !*target)
        return unpack_refuse(unpack, "hard link that leads outside");
    int error = unpack_enter(unpack, target, false, from_name);
    int from = error ? error : sys_fcntl(trail_fd(&unpack->trail), F_DUPFD_CLOEXEC, 3);
    if (from < 0)
        return from;
    error = sys_statx(from, from_name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is);
    if (!error && ((is.mode & S_IFMT) != S_IFREG || !unpack_find(unpack, &is)->inode))
        error = unpack_refuse(unpack, "hard link to no member");
    if (!error)
        error = unpack_enter(unpack, path, true, name);
    int directory = trail_fd(&unpack->trail);
    bool itself = !error && !sys_statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &there) &&
                  there.inode == is.inode && there.device_major == is.device_major && there.device_minor == is.device_minor;
    if (!error && !itself) {
        error = unpack_make_room(directory, name);
        if (!error)
            error = sys_linkat(from, from_name, directory, name, 0);
    }
    fd_close(&from);
    return error;
}

/* Directories */

/* Times come when everything is there, or when there is no room for more: what is put into a directory changes its. */
static int unpack_set_times(struct unpack *unpack)
{
    char name[NAME_MAX + 1];
    for (struct unpack_time *time = unpack->last; time; time = time->before) {
        const struct timespec times[2] = {{time->modified, 0}, {time->modified, 0}};
        int error = unpack_enter(unpack, time->path, false, name);
        if (error == -ESTALE || error == -EMFILE || error == -ENFILE)
            return error;
        int fd = error ? error : open_directory(trail_fd(&unpack->trail), name);
        if (fd >= 0) /* else it has been replaced */
            (void)sys_utimensat(fd, NULL, times, 0);
        fd_close(&fd);
    }
    unpack->last = NULL;
    arena_rewind(&unpack->times, 0);
    return 0;
}

static int unpack_directory(struct unpack *unpack, const struct tar_member *member, const char *path)
{
    char name[NAME_MAX + 1];
    size_t size = strlen(path) + 1;
    int error = unpack_enter(unpack, path, true, name);
    if (error)
        return error;
    int fd = open_directory(trail_fd(&unpack->trail), name);
    if (fd == -ENOENT) {
        error = sys_mkdirat(trail_fd(&unpack->trail), name, UNPACK_WORLD);
        fd = error ? error : open_directory(trail_fd(&unpack->trail), name);
    }
    if (fd < 0)
        return fd;
    error = sys_fchmod(fd, (member->mode & UNPACK_WORLD) | 0700);
    fd_close(&fd);
    struct unpack_time *time = arena_take(&unpack->times, sizeof *time + size);
    if (!error && !time) {
        error = unpack_set_times(unpack);
        time = arena_take(&unpack->times, sizeof *time + size);
    }
    if (error || !time)
        return error;
    memcpy(time->path, path, size);
    time->modified = member->modified;
    time->before = unpack->last;
    unpack->last = time;
    return 0;
}

/* Files */

static int unpack_content(struct unpack *unpack, int fd)
{
    int got;
    while ((got = tar_data(&unpack->tar, unpack->buffer, sizeof unpack->buffer)) > 0)
        for (int at = 0; at < got;) {
            long put = sys_write(fd, unpack->buffer + at, (size_t)(got - at));
            if (put < 0)
                return (int)put;
            at += (int)put;
        }
    return got;
}

static int unpack_file(struct unpack *unpack, const struct tar_member *member, int directory, const char *name)
{
    const struct timespec times[2] = {{member->modified, 0}, {member->modified, 0}};
    unsigned mode = (member->mode & UNPACK_WORLD) | 0600;
    struct statx is;
    int fd = sys_openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return fd;
    int error = unpack_content(unpack, fd);
    if (!error)
        error = sys_fchmod(fd, mode);
    if (!error)
        error = sys_utimensat(fd, NULL, times, 0);
    if (!error)
        error = sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is);
    if (!error)
        unpack_remember(unpack, &is);
    fd_close(&fd);
    return error;
}

static int unpack_member(struct unpack *unpack, const struct tar_member *member)
{
    char path[TAR_PATH], name[NAME_MAX + 1];
    memcpy(path, member->path, strlen(member->path) + 1);
    if (!unpack_tidy(path))
        return unpack_refuse(unpack, "name that leads outside");
    if (!*path)
        return 0; /* the directory itself */
    if (member->type == TAR_DIRECTORY)
        return unpack_directory(unpack, member, path);
    if (member->type == TAR_HARD_LINK)
        return unpack_hard_link(unpack, member, path);
    int error = unpack_enter(unpack, path, true, name);
    int directory = trail_fd(&unpack->trail);
    if (!error)
        error = unpack_make_room(directory, name);
    if (error)
        return error;
    if (member->type == TAR_LINK) /* wherever it leads: it is kept, and nothing is ever made through it */
        return sys_symlinkat(member->target, directory, name);
    return unpack_file(unpack, member, directory, name);
}

static int unpack_all(struct unpack *unpack)
{
    struct tar_member member;
    int result, got;
    while ((result = tar_next(&unpack->tar, &member)) > 0) {
        unpack->op->step = "unpack";
        result = unpack_member(unpack, &member);
        if (result)
            break;
    }
    if (result == -EBADMSG && unpack->tar.problem)
        return unpack_refuse(unpack, unpack->tar.problem);
    if (result)
        return result;
    while ((got = op_read(unpack->op, unpack->buffer, sizeof unpack->buffer)) > 0)
        ; /* what pads the end of the archive */
    return got < 0 ? got : unpack_set_times(unpack);
}

int serve_upload(struct op *op)
{
    struct upload_message request;
    struct unpack *unpack = arena_take(&op->arena, sizeof *unpack);
    struct arena made;
    char *path;
    int root = -1, error = message_read(op->request, &upload_shape, &request);
    if (!error)
        error = unpack ? path_of(op, request.path, &path) : -ENOMEM;
    if (error)
        return error;
    op->step = "mkdir";
    error = path_make(AT_FDCWD, path);
    if (!error) {
        root = sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        error = root < 0 ? root : 0;
    }
    if (!error)
        error = trail_open_take(&unpack->trail, &root, &op->arena);
    if (!error)
        error = arena_split(&op->arena, UNPACK_TIMES, &unpack->times);
    if (!error)
        error = arena_split(&op->arena, UNPACK_MADE * sizeof *unpack->made, &made);
    if (!error)
        error = op_reply(op, NULL);
    if (error)
        return error;
    unpack->op = op;
    unpack->made = (struct unpack_made *)(void *)made.base; /* zeros: nobody has touched it */
    tar_start(&unpack->tar, unpack_read, op);
    error = unpack_all(unpack);
    return error ? error : file_exit(op, AT_FDCWD, path, path, AT_SYMLINK_NOFOLLOW);
}
