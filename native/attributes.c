/* STAT, MKDIR, SET. */
#include "io.h"
#include "op.h"
#include "sys.h"

int serve_stat(struct op *op)
{
    const struct stat_message *request = op->request;
    char *path;
    TRY(path_of(op, request->path, &path));
    return file_answer(op, AT_FDCWD, path, path, request->flags & STAT_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW, op_reply);
}

static int mkdir_parents(char *path)
{
    struct statx is;
    int error = path_make(AT_FDCWD, path);
    bool directory = !sys_statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &is) && is_directory(&is);
    if (!directory && (!error || error == -ENOTDIR) && !sys_statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is))
        return -EEXIST; /* the last of them is there, and is something else */
    return error;
}

int serve_mkdir(struct op *op)
{
    const struct mkdir_message *request = op->request;
    char *path;
    if (request->mode > 07777)
        return -EBADMSG;
    TRY(path_of(op, request->path, &path));
    op->step = "mkdir";
    TRY(request->flags & MKDIR_PARENTS ? mkdir_parents(path) : sys_mkdirat(AT_FDCWD, path, 0777));
    if (request->flags & MKDIR_MODE) {
        op->step = "chmod";
        TRY(sys_fchmodat(AT_FDCWD, path, request->mode));
    }
    return file_answer(op, AT_FDCWD, path, path, AT_SYMLINK_NOFOLLOW, op_reply);
}

int serve_set(struct op *op)
{
    const struct set_message *request = op->request;
    char *path;
    if (request->mode > 07777)
        return -EBADMSG;
    TRY(path_of(op, request->path, &path));
    op->step = "chown"; /* before the mode: a change of owner clears the set-id bits */
    if (request->flags & (SET_UID | SET_GID))
        TRY(sys_fchownat(AT_FDCWD, path, request->flags & SET_UID ? request->uid : UINT32_MAX,
                         request->flags & SET_GID ? request->gid : UINT32_MAX, AT_SYMLINK_NOFOLLOW));
    if (request->flags & SET_MODE) {
        op->step = "chmod";
        TRY(sys_fchmodat(AT_FDCWD, path, request->mode));
    }
    if (request->flags & SET_MODIFIED) {
        const struct timespec times[2] = {{0, UTIME_OMIT}, timespec_of(request->modified)};
        op->step = "utimes";
        TRY(sys_utimensat(AT_FDCWD, path, times, 0));
    }
    return file_answer(op, AT_FDCWD, path, path, AT_SYMLINK_NOFOLLOW, op_reply);
}
