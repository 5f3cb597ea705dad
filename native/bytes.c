#include "bytes.h"
#include "kernel.h"

enum { FIELD_HEADER = 8 };

static size_t padded(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

struct reader reader_of(const void *bytes, size_t size)
{
    return (struct reader){bytes, size};
}

struct reader text_of(const char *text)
{
    return reader_of(text, strlen(text));
}

int get_bytes(struct reader *from, void *to, size_t size)
{
    struct reader part;
    TRY(get_part(from, size, &part));
    memcpy(to, part.at, size);
    return 0;
}

int get_part(struct reader *from, size_t size, struct reader *part)
{
    if (from->left < size)
        return -EBADMSG;
    *part = reader_of(from->at, size);
    from->at += size;
    from->left -= size;
    return 0;
}

bool all_zero(const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    while (size && !*at)
        at++, size--;
    return !size;
}

int get_field(struct reader *from, uint16_t *tag, struct reader *value)
{
    struct reader rest = *from, padding;
    uint16_t zero;
    uint32_t length;
    if (!from->left)
        return 0;
    if (get_number(&rest, tag) || get_number(&rest, &zero) || get_number(&rest, &length) || zero)
        return -EBADMSG;
    if (get_part(&rest, length, value) || get_part(&rest, padded(length) - length, &padding) || !all_zero(padding.at, padding.left))
        return -EBADMSG;
    *from = rest;
    return 1;
}

int check_text(struct reader value)
{
    return memchr(value.at, 0, value.left) ? -EBADMSG : 0;
}

int check_strings(struct reader value)
{
    return value.at[value.left - 1] ? -EBADMSG : 0;
}

size_t count_strings(struct reader value)
{
    size_t count = 0;
    for (size_t i = 0; i < value.left; i++)
        count += !value.at[i];
    return count;
}

const char *next_string(struct reader *strings)
{
    const char *text = (const char *)strings->at;
    const unsigned char *end = memchr(strings->at, 0, strings->left);
    must(end);
    size_t size = (size_t)(end + 1 - strings->at);
    strings->at += size;
    strings->left -= size;
    return text;
}

bool reader_is(struct reader bytes, const char *text)
{
    return bytes.left == strlen(text) && (!bytes.left || !memcmp(bytes.at, text, bytes.left));
}

struct writer writer_of(void *bytes, size_t size)
{
    return (struct writer){bytes, 0, size};
}

int put_bytes(struct writer *to, const void *bytes, size_t size)
{
    if (to->size - to->used < size)
        return -ENOBUFS;
    if (size)
        memcpy(to->base + to->used, bytes, size);
    to->used += size;
    return 0;
}

int put_u16(struct writer *to, uint16_t value)
{
    return put_bytes(to, &value, sizeof value);
}

int put_u32(struct writer *to, uint32_t value)
{
    return put_bytes(to, &value, sizeof value);
}

int put_field(struct writer *to, uint16_t tag, const void *bytes, size_t size)
{
    static const unsigned char zeros[8];
    if (to->size - to->used < size || to->size - to->used - size < FIELD_HEADER + padded(size) - size)
        return -ENOBUFS;
    (void)put_u16(to, tag);
    (void)put_u16(to, 0);
    (void)put_u32(to, (uint32_t)size);
    (void)put_bytes(to, bytes, size);
    return put_bytes(to, zeros, padded(size) - size);
}
