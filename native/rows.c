#include "rows.h"

#include "kernel.h"
#include "schema.h"

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

int rows_flush(struct rows *rows)
{
    size_t size = rows->waiting;
    rows->waiting = 0;
    return size ? op_write(rows->op, rows->buffer, size) : 0;
}

int rows_add(struct rows *rows, const struct shape *shape, const void *message)
{
    uint32_t size;
    if (rows->waiting > sizeof rows->buffer - ROW_BYTES)
        TRY(rows_flush(rows));
    struct writer row = writer_of(rows->buffer + rows->waiting, ROW_BYTES);
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
    rows->waiting += row.used;
    return 1;
}

int rows_exit(struct rows *rows)
{
    struct walked_message message = {.flags = rows->truncated ? WALKED_TRUNCATED : 0};
    TRY(rows_flush(rows));
    return op_exit(rows->op, &walked_shape, &message);
}
