/* Memory of one request: taken from the front, never grown beyond its maximum, given back as a whole. */
#pragma once

#include "tiny.h"

struct arena {
    unsigned char *base;
    size_t used;
    size_t size;
};

/* Reserves `size` bytes of address space. Pages cost memory after their first use. 0 or -errno. */
int arena_open(struct arena *, size_t size);

/* Zeroed and aligned to 16; NULL if it is full. */
void *arena_take(struct arena *, size_t size);

/* An array of `count` elements, with a check of the product. */
void *arena_array(struct arena *, size_t count, size_t size);

/* A copy of `size` bytes with a NUL behind it. */
char *arena_text(struct arena *, const void *from, size_t size);

/* The same, but not zeroed: for memory that no user of this arena had before. It costs nothing before its first use. */
void *arena_untouched(struct arena *, size_t size);

/* Splits off such memory as a separate arena, which needs no close. 0 or -ENOMEM. */
int arena_split(struct arena *, size_t size, struct arena *part);

/* Frees all memory taken since `mark` (a value of `used`). The next use zeroes it. */
void arena_rewind(struct arena *, size_t mark);
