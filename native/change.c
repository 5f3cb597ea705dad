/* REMOVE, MOVE, COPY. */
#include "copy.h"
#include "file.h"
#include "io.h"
#include "ops.h"
#include "path.h"
#include "remove.h"
#include "sys.h"

static int remove_one(const char *path)
{
    struct statx is;
    TRY(sys_statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is));
    return sys_unlinkat(AT_FDCWD, path, is_directory(&is) ? AT_REMOVEDIR : 0);
}

/* Its path is not needed any more. */
static int remove_all(struct op *op, char *path)
{
    const char *name;
    path_split(path, &name);
    int directory = TRY(sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    int error = *name ? remove_tree(directory, name, &op->arena) : -EBUSY;
    fd_close(&directory);
    return error;
}

int serve_remove(struct op *op)
{
    struct remove_message request;
    char *path;
    TRY(message_read(op->request, &remove_shape, &request));
    if (request.flags & ~(uint32_t)REMOVE_FLAGS)
        return -EBADMSG;
    TRY(path_of(op, request.path, &path));
    op->step = "remove";
    int error = request.flags & REMOVE_RECURSIVE ? remove_all(op, path) : remove_one(path);
    return error == -ENOENT && request.flags & REMOVE_MISSING_OK ? 0 : error;
}

int serve_copy(struct op *op)
{
    struct copy_message request;
    char *source, *destination;
    TRY(message_read(op->request, &copy_shape, &request));
    TRY(path_of(op, request.source, &source));
    TRY(path_of(op, request.destination, &destination));
    op->step = "copy";
    TRY(copy_tree(source, destination, &op->arena));
    return file_exit(op, AT_FDCWD, destination, destination, AT_SYMLINK_NOFOLLOW);
}

int serve_move(struct op *op)
{
    struct move_message request;
    char *source, *destination;
    TRY(message_read(op->request, &move_shape, &request));
    TRY(path_of(op, request.source, &source));
    TRY(path_of(op, request.destination, &destination));
    op->step = "rename";
    int error = sys_renameat2(AT_FDCWD, source, AT_FDCWD, destination, 0);
    if (error == -EXDEV) {
        size_t mark = op->arena.used;
        op->step = "copy";
        TRY(copy_tree(source, destination, &op->arena));
        arena_rewind(&op->arena, mark);
        op->step = "remove";
        error = remove_all(op, source);
    }
    return error ? error : file_exit(op, AT_FDCWD, destination, destination, AT_SYMLINK_NOFOLLOW);
}
