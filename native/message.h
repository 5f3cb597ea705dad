/* Bodies as schema.py describes them: a table for each message, one reader and one writer for all. */
#pragma once

#include "bytes.h"

enum field_kind { FIELD_TEXT, FIELD_BYTES, FIELD_STRINGS, FIELD_U32S, FIELD_U64S, FIELD_ROWS };
enum { SHAPE_NUMBERS = 16, SHAPE_FIELDS = 12 };

struct shape {
    uint32_t known; /* flags that may be set in the first number; 0: it has none */
    size_t numbers;
    struct {
        uint16_t offset;
        uint8_t size;
        bool zero;
    } number[SHAPE_NUMBERS];
    size_t fields;
    struct {
        uint16_t offset;
        uint16_t tag;
        enum field_kind kind;
        uint32_t limit;
    } field[SHAPE_FIELDS];
};

/* Fills the struct of the message. Its fields are parts of `body`, which must live as long as they; an absent one is
 * empty. 0 or -EBADMSG: then nothing is to be used. */
int message_read(struct reader body, const struct shape *, void *message);

/* The same in the other direction. Rows are put behind it, one by one (message_put_row). 0 or -ENOBUFS. */
int message_put(struct writer *, const struct shape *, const void *message);

/* A row of a message that was put before it. */
int message_put_row(struct writer *, uint16_t tag, const struct shape *, const void *row);
