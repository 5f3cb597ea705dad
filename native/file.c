#include "io.h"
#include "op.h"
#include "sys.h"

static uint32_t file_kind(unsigned mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return FILE_REGULAR;
    case S_IFDIR:
        return FILE_DIRECTORY;
    case S_IFLNK:
        return FILE_LINK;
    default:
        return FILE_OTHER;
    }
}

void file_describe(struct file *file, int directory, const char *name, const char *path, const struct statx *is)
{
    struct file_message *message = &file->message;
    *message = (struct file_message){
        .kind = file_kind(is->mode),
        .mode = is->mode & 07777u,
        .uid = is->uid,
        .gid = is->gid,
        .size = is->size,
        .path = text_of(path),
    };
    if (!modified_at(is, &message->modified))
        message->modified = is->modified.seconds < 0 ? INT64_MIN : INT64_MAX;
    if (message->kind == FILE_LINK) { /* it may have become something else: then it has no target */
        long size = sys_readlinkat(directory, name, file->target, sizeof file->target - 1);
        message->target = reader_of(file->target, size < 0 ? 0 : (size_t)size);
    }
}

int file_answer(struct op *op, int directory, const char *name, char *path, int flags, op_teller *tell)
{
    struct statx is;
    op->step = "stat";
    TRY(sys_statx(directory, name, flags, STATX_BASIC_STATS, &is));
    struct file *file = arena_take(&op->arena, sizeof *file);
    if (!file)
        return -ENOMEM;
    (void)path_tidy(path);
    file_describe(file, directory, name, path, &is);
    return tell(op, &file_shape, &file->message);
}
