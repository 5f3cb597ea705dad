/* Bytes of a stream between who writes and who reads, by their offset in the whole stream. */
#pragma once

#include "tiny.h"

struct ring {
    unsigned char *base; /* NULL until the first byte */
    size_t size;         /* a power of two */
    uint64_t first;      /* the oldest byte that is kept */
    uint64_t end;
};

struct ring ring_of(size_t size);
void ring_free(struct ring *);

/* One read of at most `most` bytes; it may overwrite bytes before `keep`. As read(2); -EAGAIN without room. */
long ring_fill(struct ring *, int fd, uint64_t keep, size_t most);
/* One write from `first` on. As write(2); 0 where there is nothing. */
long ring_drain(struct ring *, int fd);
/* Bytes that the caller knows to have room for. 0 or -ENOMEM. */
int ring_append(struct ring *, const void *bytes, size_t size);
/* `size` bytes from `offset`, all of which are there. */
void ring_copy(const struct ring *, uint64_t offset, void *to, size_t size);
