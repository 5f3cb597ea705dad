/* LIST, FIND. */
#include "file.h"
#include "glob.h"
#include "ops.h"
#include "path.h"
#include "rows.h"
#include "sys.h"
#include "walk.h"

/* One after the other: a prefix, a slash, a path below it. */
struct joined {
    size_t prefix;
    char path[PATH_MAX];
};

static void join_prefix(struct joined *joined, const char *prefix)
{
    size_t size = strlen(prefix);
    memcpy(joined->path, prefix, size);
    if (size > 1) /* "/" is one itself */
        joined->path[size++] = '/';
    joined->prefix = size;
}

/* The walk gives only paths that fit. */
static const char *join_below(struct joined *joined, const char *below)
{
    memcpy(joined->path + joined->prefix, below, strlen(below) + 1);
    return joined->path;
}

struct search {
    struct walk walk;
    struct file file;
    struct joined joined;
};

/* Walks the directory; its rows are those whose name matches. */
static int search(struct op *op, struct reader field, size_t deepest, struct reader name, uint64_t limit)
{
    struct walk_entry entry;
    struct writer body;
    char *path;
    int event, error = path_of(op, field, &path);
    if (error)
        return error;
    op->step = "open";
    int root = sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
    if (root < 0)
        return root;
    struct search *search = arena_take(&op->arena, sizeof *search);
    struct rows *rows = rows_new(op, limit);
    if (!search || !rows)
        return -ENOMEM;
    path_tidy(path);
    if (strlen(path) + 2 > LIMIT_PATH)
        return -ENAMETOOLONG;
    join_prefix(&search->joined, path);
    op->step = "walk";
    error = walk_open_take(&search->walk, &root, &op->arena, deepest, LIMIT_PATH - search->joined.prefix, false);
    if (error)
        return error;
    while ((event = walk_next(&search->walk, &entry)) > 0) {
        if (event != WALK_ENTRY || !glob_match(name.at, name.left, (const unsigned char *)entry.name, strlen(entry.name)))
            continue;
        const char *known = join_below(&search->joined, entry.path);
        error = file_body(&search->file, entry.parent, entry.name, known, &entry.is, &body);
        if (!error)
            error = rows_add(rows, &body);
        if (error <= 0)
            break;
    }
    if (event < 0 || error < 0)
        return event < 0 ? event : error;
    rows->truncated = rows->truncated || search->walk.truncated;
    return rows_exit(rows);
}

static const unsigned char EVERY_NAME[] = "*";

int serve_list(struct op *op)
{
    struct list_message request;
    int error = message_read(op->request, &list_shape, &request);
    if (!error && !request.depth)
        error = -EINVAL;
    return error ? error : search(op, request.path, request.depth, reader_of(EVERY_NAME, 1), UINT64_MAX);
}

int serve_find(struct op *op)
{
    struct find_message request;
    int error = message_read(op->request, &find_shape, &request);
    return error ? error : search(op, request.path, SIZE_MAX, request.name, request.limit);
}
