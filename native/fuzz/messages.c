/* Any bytes as a stream of frames, each body as every message. No reader leaves them. Each accepted body is the one
 * that a writer would write. */
#include "../kernel.h"
#include "../wire.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

static void read_as(struct reader body, const struct shape *shape)
{
    static unsigned char again[LIMIT_OPEN_BODY], rows[2 * LIMIT_OPEN_BODY];
    _Alignas(16) unsigned char message[512];
    struct writer to = writer_of(again, sizeof again);
    if (message_read(body, shape, message))
        return;
    for (size_t i = 0; i < shape->fields; i++) {
        struct reader *value = (struct reader *)(void *)(message + shape->field[i].offset);
        struct reader strings = *value;
        size_t count = shape->field[i].kind == FIELD_STRINGS ? count_strings(strings) : 0;
        while (count--)
            must(next_string(&strings));
        if (shape->field[i].kind == FIELD_ROWS)
            return;
    }
    must(!message_put(&to, shape, message));
    struct writer none = writer_of(again, 0), row = writer_of(rows, sizeof rows), few = writer_of(rows, to.used + 4);
    must(!to.used || message_put(&none, shape, message) == -ENOBUFS);
    (void)message_put_row(&row, 1, shape, message);
    (void)message_put_row(&few, 1, shape, message);
    must(reader_is(text_of("text"), "text") && !reader_is(text_of("texts"), "text") && !reader_is(text_of("tent"), "text"));
    must(reader_is(reader_of(NULL, 0), ""));
    must(to.used == body.left && !memcmp(to.base, body.at, to.used));
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    static const struct shape *const shapes[] = {EVERY_SHAPE};
    struct reader rest = reader_of(bytes, size), skipped;
    struct frame frame;
    long length;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        read_as(rest, shapes[i]);
    while ((length = frame_parse(rest, &frame)) > 0) {
        for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
            read_as(frame.body, shapes[i]);
        must(!get_part(&rest, (size_t)length, &skipped));
    }
    return 0;
}
