/* LIST, FIND. */
#include "rows.h"
#include "sys.h"

static int tell(struct rows *rows, const struct walk_entry *entry, const char *path, void *context)
{
    struct file *file = context;
    file_describe(file, entry->parent, entry->name, path, &entry->is);
    return rows_add(rows, &file_shape, &file->message);
}

/* Walks the directory; its rows are those whose name matches. */
static int search(struct op *op, struct reader field, size_t deepest, struct reader name, uint64_t limit)
{
    char *path;
    TRY(path_of(op, field, &path));
    op->step = "open";
    int root = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0));
    struct file *file = arena_take(&op->arena, sizeof *file);
    struct rows *rows = rows_new(op, limit);
    if (!file || !rows)
        return -ENOMEM;
    (void)path_tidy(path);
    op->step = "walk";
    TRY(rows_walk(rows, root, path, deepest, name, tell, file));
    return rows_exit(rows);
}

static const unsigned char EVERY_NAME[] = "*";

int serve_list(struct op *op)
{
    const struct list_message *request = op->request;
    if (!request->depth)
        return -EINVAL;
    return search(op, request->path, request->depth, reader_of(EVERY_NAME, 1), UINT64_MAX);
}

int serve_find(struct op *op)
{
    const struct find_message *request = op->request;
    return search(op, request->path, SIZE_MAX, request->name, request->limit);
}
