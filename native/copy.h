/* A copy of a tree: modes and times as they were, links as links, never through one. Sockets and devices are no data
 * and are passed over. */
#pragma once

#include "arena.h"

enum { COPY_MEMORY = 50 << 20 };

/* Of `source`, as `destination`, both absolute. Takes COPY_MEMORY of `memory`. 0 or -errno; -EINVAL: into itself. */
int copy_tree(const char *source, const char *destination, struct arena *memory);

/* All that is left of one regular file, at its offset, to the other. */
int copy_bytes(int from, int to);
