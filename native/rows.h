/* Sends rows of a search, up to the number in the request, or up to the bytes that an answer may have. */
#pragma once

#include "op.h"
#include "walk.h"

enum { ROWS_BYTES = 32 << 20, ROW_BYTES = 3 * PATH_MAX + 4096 };

struct rows {
    struct op *op;
    uint64_t left;
    size_t room;
    bool truncated;
};

/* In the operation's memory; NULL if there is none. */
struct rows *rows_new(struct op *, uint64_t limit);

/* 1; 0: no more; or -errno. */
int rows_add(struct rows *, const struct shape *, const void *message);

/* Calls `found` for each name below `root`, which it takes, that matches. `path` is that of the root. */
typedef int rows_found(struct rows *, const struct walk_entry *, const char *path, void *context);
int rows_walk(struct rows *, int root, const char *path, size_t deepest, struct reader name, rows_found *found, void *context);

/* The EXIT. */
int rows_exit(struct rows *);
