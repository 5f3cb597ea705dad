/* Memory of one request: taken from the front, never grown beyond its maximum, given back as a whole. */
#ifndef ARENA_H
#define ARENA_H

#include "tiny.h"

struct arena {
    unsigned char *base;
    size_t used;
    size_t size;
};

/* Reserves `size` bytes of address space; pages cost memory once they are touched. 0 or -errno. */
int arena_open(struct arena *, size_t size);
void arena_close(struct arena *);

/* Zeroed and aligned to 16; NULL if it is full. */
void *arena_take(struct arena *, size_t size);

/* An array of `count` elements: the product is checked. */
void *arena_array(struct arena *, size_t count, size_t size);

/* A copy of `size` bytes with a NUL behind it. */
char *arena_text(struct arena *, const void *from, size_t size);

/* Its next `size` bytes, as an arena of their own, which need not be closed. Not touched, so they cost nothing yet.
 * 0 or -ENOMEM. */
int arena_split(struct arena *, size_t size, struct arena *part);

/* What was taken since `mark` (a value of `used`) is free again, and zeroed when it is taken next. */
void arena_rewind(struct arena *, size_t mark);

#endif
