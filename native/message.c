#include "message.h"
#include "kernel.h"

static int read_numbers(struct reader *from, const struct shape *shape, unsigned char *to)
{
    for (size_t i = 0; i < shape->numbers; i++) {
        unsigned char *number = to + shape->number[i].offset;
        TRY(get_bytes(from, number, shape->number[i].size));
        if (shape->number[i].zero && !all_zero(number, shape->number[i].size))
            return -EBADMSG;
    }
    return 0;
}

static int check_value(enum field_kind kind, struct reader value)
{
    switch (kind) {
    case FIELD_TEXT:
        return check_text(value);
    case FIELD_STRINGS:
        return check_strings(value);
    case FIELD_U32S:
        return value.left % sizeof(uint32_t) ? -EBADMSG : 0;
    case FIELD_U64S:
        return value.left % sizeof(uint64_t) ? -EBADMSG : 0;
    default: /* bytes and rows may be anything */
        return 0;
    }
}

/* Fields come in the order of their tags, each at most once, none of them empty: one encoding of one message. */
int message_read(struct reader body, const struct shape *shape, void *message)
{
    unsigned char *to = message;
    size_t next = 0;
    uint16_t tag;
    struct reader value;
    int more;
    for (size_t i = 0; i < shape->fields; i++)
        *(struct reader *)(void *)(to + shape->field[i].offset) = reader_of(NULL, 0);
    if (read_numbers(&body, shape, to) || (shape->known && *(const uint32_t *)message & ~shape->known))
        return -EBADMSG;
    while ((more = get_field(&body, &tag, &value)) == 1) {
        while (next < shape->fields && shape->field[next].tag != tag)
            next++;
        if (next == shape->fields || !value.left || value.left > shape->field[next].limit)
            return -EBADMSG;
        if (check_value(shape->field[next].kind, value))
            return -EBADMSG;
        *(struct reader *)(void *)(to + shape->field[next++].offset) = value;
    }
    return more;
}

int message_put(struct writer *to, const struct shape *shape, const void *message)
{
    const unsigned char *from = message;
    for (size_t i = 0; i < shape->numbers; i++)
        TRY(put_bytes(to, from + shape->number[i].offset, shape->number[i].size));
    for (size_t i = 0; i < shape->fields; i++) {
        const struct reader *value = (const struct reader *)(const void *)(from + shape->field[i].offset);
        if (value->left)
            TRY(put_field(to, shape->field[i].tag, value->at, value->left));
    }
    return 0;
}

int message_put_row(struct writer *to, uint16_t tag, const struct shape *shape, const void *row)
{
    unsigned char bytes[2048];
    struct writer body = writer_of(bytes, sizeof bytes);
    TRY(message_put(&body, shape, row));
    return put_field(to, tag, body.base, body.used);
}
