/* REMOVE, MOVE, COPY. */
#include "op.h"
#include "sys.h"
#include "walk.h"

/* Its path is not needed any more. */
static int remove_all(struct op *op, char *path)
{
    const char *name;
    path_split(path, &name);
    HELD int directory = TRY(sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    return *name ? remove_tree(directory, name, &op->arena) : -EBUSY;
}

int serve_remove(struct op *op)
{
    const struct remove_message *request = op->request;
    char *path;
    TRY(path_of(op, request->path, &path));
    op->step = "remove";
    int error = request->flags & REMOVE_RECURSIVE ? remove_all(op, path) : remove_one(AT_FDCWD, path);
    return error == -ENOENT && request->flags & REMOVE_MISSING_OK ? 0 : error;
}

int serve_copy(struct op *op)
{
    const struct copy_message *request = op->request;
    char *source, *destination;
    TRY(path_of(op, request->source, &source));
    TRY(path_of(op, request->destination, &destination));
    op->step = "copy";
    TRY(copy_tree(source, destination, &op->arena));
    return file_answer(op, AT_FDCWD, destination, destination, AT_SYMLINK_NOFOLLOW, op_exit);
}

int serve_move(struct op *op)
{
    const struct move_message *request = op->request;
    char *source, *destination;
    TRY(path_of(op, request->source, &source));
    TRY(path_of(op, request->destination, &destination));
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
    return error ? error : file_answer(op, AT_FDCWD, destination, destination, AT_SYMLINK_NOFOLLOW, op_exit);
}
