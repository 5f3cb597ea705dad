/* The one checked reader and the one checked writer. Every byte from outside is touched through `struct reader`.
 *
 * Numbers are little-endian on the wire. A get consumes what it returns. Without enough bytes it
 * fails with -EBADMSG and consumes nothing. Without room a put fails with -ENOBUFS and writes nothing. */
#pragma once

#include "tiny.h"

struct reader {
    const unsigned char *at;
    size_t left;
};

struct reader reader_of(const void *bytes, size_t size);
struct reader text_of(const char *text);
int get_bytes(struct reader *, void *to, size_t size);
/* A number as wide as the variable. Both architectures are little-endian, as the wire is. */
#define get_number(from, to) get_bytes(from, to, sizeof *(to))
/* A part of `size` bytes as a separate reader, which can't leave the part. */
int get_part(struct reader *, size_t size, struct reader *part);
/* One field: u16 tag, u16 0, u32 length, bytes, zeros up to a multiple of 8. 1; 0 at the end; -EBADMSG. */
int get_field(struct reader *, uint16_t *tag, struct reader *value);

/* Checks of a value. 0 or -EBADMSG. */
int check_text(struct reader value);    /* no NUL; not empty */
int check_strings(struct reader value); /* each with a NUL behind it, and there is one */

/* Whether these are the bytes of the text. */
bool reader_is(struct reader, const char *text);

bool all_zero(const void *bytes, size_t size);

/* How many strings `check_strings` has found good. */
size_t count_strings(struct reader value);
/* The next of them. The reader must not be at its end. */
const char *next_string(struct reader *strings);

struct writer {
    unsigned char *base;
    size_t used;
    size_t size;
};

struct writer writer_of(void *bytes, size_t size);
int put_u16(struct writer *, uint16_t);
int put_u32(struct writer *, uint32_t);
int put_bytes(struct writer *, const void *bytes, size_t size);
int put_field(struct writer *, uint16_t tag, const void *bytes, size_t size);
