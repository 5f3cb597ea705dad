/* Trees of directories: a way down, a walk, a copy, a removal. */
#pragma once

#include "io.h"

/* A way down a tree of directories, by descriptors, never through a symbolic link. However deep it goes, it holds at
 * most TRAIL_OPEN descriptors: on its way back up it opens a directory again by "..". If a program has moved it, it
 * uses the names from the root. It is the same directory, by device and inode, or -ESTALE. */
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

/* Owns `root`, a directory, from now on, and takes TRAIL_MEMORY of `memory`. After an error it is open still: the
 * operation ends. 0 or -errno. */
int trail_open(struct trail *, int root, struct arena *memory);
/* The same of a directory that need not be readable: its descriptor is only looked up in then. */
int trail_open_at(struct trail *, int directory, struct arena *memory);
void trail_close(struct trail *);

/* The directory that it has come to, open to be read. The trail keeps owning it. */
int trail_fd(const struct trail *);

/* The name of the directory at that depth, in the one above; the root, at 0, has none. */
const char *trail_name(const struct trail *, size_t depth);

/* Into the directory `name`. -ENAMETOOLONG: no room for one more. */
int trail_down(struct trail *, const char *name);

/* Out of it again, which must not be the root. */
int trail_up(struct trail *);

/* The directory `name`, to be read; a symbolic link is -ENOTDIR. */
int open_directory(int parent, const char *name);

/* The name of WRITE's new file while it stands beside its target: this, and a random number of at least 2^63. */
#define TEMPORARY_NAME ".paddock-"
enum { TEMPORARY_BIT = 63 };

static inline bool is_temporary(const char *name)
{
    size_t prefix = sizeof TEMPORARY_NAME - 1, size = strlen(name);
    uint64_t number;
    return size > prefix && find_bytes(name, prefix, TEMPORARY_NAME, prefix) &&
           !parse_decimal(name + prefix, size - prefix, &number) && number >> TEMPORARY_BIT;
}

/* A walk below a directory, in the order of names, without following links and without recursion. It skips files that
 * vanish, and directories that the user may not read. */
enum {
    WALK_NAMES = 32 << 20, /* bytes: names of the directories that it stands in; in a larger one it does not look */
    WALK_BUFFER = 32 << 10,
};

struct walk_level {
    struct walk_level *up;
    size_t mark;
    const char **names;
    size_t count, next;
    size_t path;   /* how long the path of the directory is */
    uint16_t mode; /* its own */
};

struct walk {
    struct trail trail;
    struct arena memory;
    struct walk_level *level;
    size_t deepest;
    bool enter;     /* what was given last is a directory, to be entered next; the caller may clear it */
    bool strict;    /* nothing is passed over: what cannot be looked at is an error */
    bool truncated; /* there is more: too deep, too long a path, too large a directory */
    const char *name; /* and mode of what was given last */
    uint16_t mode;
    char path[PATH_MAX]; /* from the root of the walk */
    size_t path_room; /* 0: it isn't kept */
    char buffer[WALK_BUFFER] __attribute__((aligned(8)));
};

struct walk_entry {
    int parent; /* its directory */
    const char *name;
    const char *path; /* from the root of the walk; NULL without paths */
    struct statx is;
};

enum walk_event { WALK_END = 0, WALK_ENTRY = 1, WALK_LEFT = 2 };

/* Of a zeroed one. Owns `root` as a trail does, and takes WALK_NAMES more. `path_room` is the limit for a path in bytes, and
 * longer ones don't appear; 0: no paths, and no limit. `strict`: no skips. 0 or -errno. */
int walk_open(struct walk *, int root, struct arena *memory, size_t deepest, size_t path_room, bool strict);

/* WALK_ENTRY; WALK_LEFT: the end of the last directory entered, and the walk is in `parent` again, with `is.mode` of
 * the former; WALK_END; or -errno. */
int walk_next(struct walk *, struct walk_entry *);


/* A copy of a tree: modes and times as they were, links as links, never through one. Sockets and devices aren't data:
 * the copy leaves them out. */
enum { COPY_MEMORY = 50 << 20 };

/* Of `source`, as `destination`, both absolute. Takes COPY_MEMORY of `memory`. 0 or -errno; -EINVAL: into itself. */
int copy_tree(const char *source, const char *destination, struct arena *memory);

/* Deletes a tree, even if programs change it meanwhile: by descriptors, never through a link, at any depth. */
/* A file, or an empty directory. 0; -ENOTEMPTY; or -errno. */
int remove_one(int directory, const char *name);

/* `name` in `directory`, with all that is in it. Takes TRAIL_MEMORY of `memory`. 0 or -errno. */
int remove_tree(int directory, const char *name, struct arena *memory);
