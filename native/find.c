/* LIST, FIND. */
#include "file.h"
#include "glob.h"
#include "ops.h"
#include "path.h"
#include "rows.h"
#include "sys.h"
#include "walk.h"

struct search {
    struct walk walk;
    struct file file;
    char path[PATH_MAX];
};

/* Walks the directory; its rows are those whose name matches. */
static int search(struct op *op, struct reader field, size_t deepest, struct reader name, uint64_t limit)
{
    struct walk_entry entry;
    char *path;
    TRY(path_of(op, field, &path));
    op->step = "open";
    int root = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0));
    struct search *search = arena_take(&op->arena, sizeof *search);
    struct rows *rows = rows_new(op, limit);
    if (!search || !rows)
        return -ENOMEM;
    path_tidy(path);
    if (strlen(path) + 2 > LIMIT_PATH)
        return -ENAMETOOLONG;
    size_t prefix = strlen(path);
    memcpy(search->path, path, prefix);
    if (prefix > 1) /* "/" is a slash itself */
        search->path[prefix++] = '/';
    op->step = "walk";
    TRY(walk_open_take(&search->walk, &root, &op->arena, deepest, LIMIT_PATH - prefix, false));
    for (int event, more = 1; more && (event = TRY(walk_next(&search->walk, &entry)));) {
        if (event != WALK_ENTRY || !glob_match(name.at, name.left, (const unsigned char *)entry.name, strlen(entry.name)))
            continue;
        memcpy(search->path + prefix, entry.path, strlen(entry.path) + 1); /* the walk gives only paths that fit */
        file_describe(&search->file, entry.parent, entry.name, search->path, &entry.is);
        more = TRY(rows_add(rows, &file_shape, &search->file.message));
    }
    rows->truncated = rows->truncated || search->walk.truncated;
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
