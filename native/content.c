/* READ, WRITE: the bytes of one file. */
#include "op.h"
#include "sys.h"
#include "walk.h"

enum { SAFE = O_NONBLOCK | O_NOCTTY | O_CLOEXEC }; /* a FIFO or a terminal must not hold us up */
enum { CONTENT_BUFFER = 64 << 10, CONTENT_LINKS = 40, AT_EACCESS = 0x200 };

static int require_regular(int fd, struct statx *is)
{
    TRY(sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, is));
    return is_directory(is) ? -EISDIR : is_regular(is) ? 0 : -EINVAL;
}

/* READ */

static int send_range(struct op *op, int fd, uint64_t length)
{
    bool by_hand = false; /* not a pipe, or a file that has no pages */
    while (length) {
        size_t size = (size_t)min_u64(length, 1 << 20);
        long moved = by_hand ? op_fill(op, fd, size) : sys_splice(fd, op->out, size, 0);
        if (moved == -EINVAL && !by_hand) {
            by_hand = true;
            continue;
        }
        if (moved <= 0)
            return (int)moved;
        length -= (uint64_t)moved;
    }
    return 0;
}

int serve_read(struct op *op)
{
    const struct read_message *request = op->request;
    struct statx is;
    char *path;
    if (request->offset > INT64_MAX)
        return -EINVAL;
    TRY(path_of(op, request->path, &path));
    op->step = "open";
    int fd = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | SAFE, 0));
    TRY(require_regular(fd, &is));
    op->step = "read";
    (void)sys_fcntl(fd, F_SETFL, 0); /* gVisor's splice(2) would not wait for room in a pipe */
    TRY(sys_lseek(fd, (int64_t)request->offset, SEEK_SET));
    struct read_reply_message reply = {.size = is.size};
    TRY(op_reply(op, &read_reply_shape, &reply));
    return send_range(op, fd, request->length);
}

/* WRITE */

struct content {
    int directory; /* where the file is */
    int file;      /* what is written: the file itself, or what will replace it */
    char name[NAME_MAX + 1];
    char temporary[32]; /* its name beside the file; empty: it has none */
};

/* Follows `path` to the directory and the name of its file, which may be missing. So WRITE replaces a link's target,
 * not the link. */
static int content_locate(struct op *op, char *path, struct content *content)
{
    HELD int base = -1;
    for (int links = 0; links < CONTENT_LINKS; links++) {
        const char *name;
        char *target = arena_take(&op->arena, PATH_MAX + 2);
        int from = base < 0 ? AT_FDCWD : base;
        if (!target)
            return -ENOMEM;
        path_split(path, &name);
        if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
            return -EISDIR;
        if (strlen(name) > NAME_MAX)
            return -ENAMETOOLONG;
        TRY(*path ? path_make(from, path) : 0);
        content->directory = TRY(sys_openat(from, *path ? path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
        memcpy(content->name, name, strlen(name) + 1);
        long size = sys_readlinkat(content->directory, name, target, PATH_MAX - 1);
        if (size == -EINVAL || size == -ENOENT) /* no link, or nothing yet */
            return 0;
        if (size <= 0)
            return size ? (int)size : -ENOENT;
        while (size > 1 && target[size - 1] == '/')
            target[--size] = 0;
        fd_close(&base);
        base = fd_take(&content->directory);
        path = target;
    }
    return -ELOOP;
}

static int content_name(struct content *content)
{
    uint64_t random;
    char number[DECIMAL_SIZE];
    TRY(sys_getrandom(&random, sizeof random)); /* so few bytes come as a whole (getrandom(2)) */
    random |= 1ull << TEMPORARY_BIT;
    (void)JOIN(content->temporary, sizeof content->temporary, TEMPORARY_NAME, decimal(number, random));
    return 0;
}

/* A file without a name, which ends with us. Without such files, one with a name, which we try to delete. */
static int content_new(struct content *content)
{
    char path[PATH_FD];
    content->file = sys_openat(content->directory, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    if (content->file >= 0 && !sys_faccessat(AT_FDCWD, path_of_fd(content->file, path), F_OK))
        return 0;
    fd_close(&content->file);
    TRY(content_name(content));
    content->file = sys_openat(content->directory, content->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (content->file >= 0)
        return 0;
    content->temporary[0] = 0;
    return content->file;
}

/* The kernel drops a program's capabilities when it is written to; the rest of its attributes stays. It leaves out
 * attributes that the user may not set. */
static int content_attributes(struct op *op, int from, int to)
{
    char *names = arena_take(&op->arena, 64 << 10), *value = arena_take(&op->arena, 64 << 10);
    if (!names || !value)
        return -ENOMEM;
    long listed = sys_flistxattr(from, names, 64 << 10);
    if (listed < 0)
        return listed == -EOPNOTSUPP || listed == -ENOSYS ? 0 : (int)listed;
    for (const char *name = names; name < names + listed; name += strlen(name) + 1) {
        if (!strcmp(name, "security.capability"))
            continue;
        long size = sys_fgetxattr(from, name, value, 64 << 10);
        int error = size < 0 ? (int)size : sys_fsetxattr(to, name, value, (size_t)size, 0);
        if (error && error != -EPERM && error != -EACCES && error != -EOPNOTSUPP && error != -ENODATA)
            return error;
    }
    return 0;
}

/* Gives the new file the owner, mode and attributes of the old one. */
static int content_inherit(struct op *op, const struct content *content, const struct statx *before)
{
    struct statx now;
    HELD int old = sys_openat(content->directory, content->name, O_WRONLY | O_NOFOLLOW | SAFE, 0);
    if (old == -ETXTBSY)
        old = sys_openat(content->directory, content->name, O_RDONLY | O_NOFOLLOW | SAFE, 0);
    TRY(old);
    TRY(sys_statx(content->file, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &now));
    if (now.uid != before->uid || now.gid != before->gid) {
        int error = sys_fchownat(content->file, "", before->uid, before->gid, AT_EMPTY_PATH);
        if (error && error != -EPERM) /* another's file in a directory of ours: it becomes ours */
            return error;
    }
    TRY(sys_fchmod(content->file, before->mode & 07777u));
    return content_attributes(op, old, content->file);
}

static int content_open(struct op *op, struct content *content, bool append)
{
    struct statx before;
    op->step = "open";
    if (append) {
        content->file = sys_openat(content->directory, content->name, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | SAFE, 0666);
        return content->file < 0 ? content->file : require_regular(content->file, &before);
    }
    int error = sys_statx(content->directory, content->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &before);
    if (error && error != -ENOENT)
        return error;
    if (error)
        return content_new(content);
    if (!is_regular(&before))
        return is_directory(&before) ? -EISDIR : -EINVAL;
    TRY(CALL4(faccessat2, content->directory, P(content->name), W_OK, AT_EACCESS)); /* by the ids that open(2) goes by */
    TRY(content_new(content));
    return content_inherit(op, content, &before);
}

static int content_receive(struct op *op, int fd)
{
    unsigned char *buffer = arena_take(&op->arena, CONTENT_BUFFER);
    int got;
    op->step = "write";
    if (!buffer)
        return -ENOMEM;
    while ((got = op_read(op, buffer, CONTENT_BUFFER)) > 0)
        TRY(write_all(fd, buffer, (size_t)got));
    return got < 0 ? got : op_committed(op);
}

/* Gives the file without a name one beside the place where it belongs. */
static int content_link(struct content *content)
{
    char path[PATH_FD];
    int error = content_name(content);
    if (!error)
        error = sys_linkat(AT_FDCWD, path_of_fd(content->file, path), content->directory, content->temporary, AT_SYMLINK_FOLLOW);
    if (error)
        content->temporary[0] = 0;
    return error;
}

static int content_commit(struct op *op, struct content *content)
{
    op->step = "rename";
    TRY(content->temporary[0] ? 0 : content_link(content));
    TRY(sys_renameat2(content->directory, content->temporary, content->directory, content->name, 0));
    content->temporary[0] = 0;
    return 0;
}

static int content_write(struct op *op, struct content *content, const struct write_message *request)
{
    TRY(content_open(op, content, request->flags & WRITE_APPEND));
    TRY(op_reply(op, NULL, NULL));
    TRY(content_receive(op, content->file));
    op->step = "chmod";
    TRY(request->flags & WRITE_MODE ? sys_fchmod(content->file, request->mode) : 0);
    return request->flags & WRITE_APPEND ? 0 : content_commit(op, content);
}

int serve_write(struct op *op)
{
    const struct write_message *request = op->request;
    struct content content = {.directory = -1, .file = -1};
    char *path, *known;
    if (request->mode > 07777)
        return -EBADMSG;
    TRY(path_of(op, request->path, &path));
    TRY(path_of(op, request->path, &known));
    op->step = "open";
    TRY(content_locate(op, path, &content));
    int error = content_write(op, &content, request);
    if (content.temporary[0])
        (void)sys_unlinkat(content.directory, content.temporary, 0);
    return error ? error : file_answer(op, content.directory, content.name, known, AT_SYMLINK_NOFOLLOW, op_exit);
}
