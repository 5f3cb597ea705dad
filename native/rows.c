#include "rows.h"
#include "patterns.h"

struct rows *rows_new(struct op *op, uint64_t limit)
{
    struct rows *rows = arena_take(&op->arena, sizeof *rows);
    if (rows) {
        rows->op = op;
        rows->left = limit;
        rows->room = ROWS_BYTES;
    }
    return rows;
}

int rows_add(struct rows *rows, const struct shape *shape, const void *message)
{
    uint32_t size;
    struct op *op = rows->op;
    TRY(op->waiting > sizeof op->buffer - ROW_BYTES ? op_flush(op) : 0);
    struct writer row = writer_of(op->buffer + op->waiting, ROW_BYTES);
    (void)put_u32(&row, 0);
    TRY(message_put(&row, shape, message));
    if (!rows->left || row.used > rows->room) {
        rows->truncated = true;
        return 0;
    }
    size = (uint32_t)(row.used - sizeof size);
    memcpy(row.base, &size, sizeof size);
    rows->left--;
    rows->room -= row.used;
    op->waiting += row.used;
    return 1;
}

int rows_walk(struct rows *rows, int root, const char *path, size_t deepest, struct reader name, rows_found *found, void *context)
{
    struct arena *arena = &rows->op->arena;
    struct walk *walk = arena_take(arena, sizeof *walk);
    struct walk_entry entry;
    char *whole = arena_take(arena, PATH_MAX);
    size_t prefix = strlen(path);
    if (!walk || !whole)
        return -ENOMEM;
    if (prefix + 2 > LIMIT_PATH)
        return -ENAMETOOLONG;
    memcpy(whole, path, prefix);
    if (prefix > 1) /* "/" is a slash itself */
        whole[prefix++] = '/';
    TRY(walk_open(walk, root, arena, deepest, LIMIT_PATH - prefix, false));
    for (int event, more = 1; more && (event = TRY(walk_next(walk, &entry)));) {
        if (event != WALK_ENTRY || !glob_match(name.at, name.left, (const unsigned char *)entry.name, strlen(entry.name)))
            continue;
        memcpy(whole + prefix, entry.path, strlen(entry.path) + 1); /* the walk gives only paths that fit */
        more = TRY(found(rows, &entry, whole, context));
    }
    rows->truncated |= walk->truncated;
    return 0;
}

int rows_exit(struct rows *rows)
{
    struct walked_message message = {.flags = rows->truncated ? WALKED_TRUNCATED : 0};
    return op_exit(rows->op, &walked_shape, &message);
}
