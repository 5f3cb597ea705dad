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

static int rows_flush(struct rows *rows)
{
    size_t size = rows->waiting;
    rows->waiting = 0;
    return size ? op_write(rows->op, rows->buffer, size) : 0;
}

int rows_add(struct rows *rows, const struct writer *body)
{
    uint32_t size = (uint32_t)body->used;
    if (!rows->left || size + sizeof size > rows->room) {
        rows->truncated = true;
        return 0;
    }
    rows->left--;
    rows->room -= size + sizeof size;
    if (size + sizeof size > sizeof rows->buffer - rows->waiting) {
        TRY(rows_flush(rows));
    }
    must(size + sizeof size <= sizeof rows->buffer);
    memcpy(rows->buffer + rows->waiting, &size, sizeof size);
    memcpy(rows->buffer + rows->waiting + sizeof size, body->base, size);
    rows->waiting += size + sizeof size;
    return 1;
}

int rows_exit(struct rows *rows)
{
    unsigned char bytes[16];
    struct writer body = writer_of(bytes, sizeof bytes);
    struct walked_message message = {.flags = rows->truncated ? WALKED_TRUNCATED : 0};
    TRY(rows_flush(rows));
    TRY(message_put(&body, &walked_shape, &message));
    return op_exit(rows->op, &body);
}
