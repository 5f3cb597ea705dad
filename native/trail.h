/* A way down a tree of directories, by descriptors, never through a symbolic link. However deep it goes, it holds at
 * most TRAIL_OPEN descriptors: on its way back up it opens a directory again by "..", and if somebody has moved it
 * meanwhile, by its names from the root; it is the same directory, by device and inode, or -ESTALE. */
#pragma once

#include "io.h"

enum { TRAIL_OPEN = 64, TRAIL_MEMORY = 8 << 20 };

struct trail_step {
    struct file_id id;
    uint32_t name; /* where in the names its own begins */
    int fd;
};

struct trail {
    struct arena memory; /* steps from its front; names from its back, downwards */
    struct trail_step *steps;
    size_t depth;      /* the number of the last step; 0 is the root */
    size_t first_open; /* steps from here on are open, and the root */
    size_t names;      /* the lowest byte in use */
};

/* Takes over `root`, a directory; and TRAIL_MEMORY of `memory`. 0 or -errno. */
int trail_open_take(struct trail *, int *root, struct arena *memory);
/* The same of a directory that need not be readable: its descriptor is only looked up in then. */
int trail_open_at(struct trail *, int directory, struct arena *memory);
void trail_close(struct trail *);

/* The directory that it has come to, open to be read. The trail keeps owning it. */
int trail_fd(const struct trail *);

/* The name of the directory at that depth, in the one above; the root, at 0, has none. */
const char *trail_name(const struct trail *, size_t depth);

/* Into the directory `name`. -ENAMETOOLONG: there is no room for one more. */
int trail_down(struct trail *, const char *name);

/* Out of it again, which must not be the root. */
int trail_up(struct trail *);

/* The directory `name`, to be read; a symbolic link is -ENOTDIR. */
int open_directory(int parent, const char *name);
