/* A walk below a directory, in the order of names, without following links and without recursion. It skips files that
 * vanish, and directories that the user may not read. */
#pragma once

#include "kernel.h"
#include "trail.h"

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
    size_t depth, deepest;
    bool enter;     /* what was given last is a directory, to be entered next; the caller may clear it */
    bool paths;     /* keep `path` */
    bool strict;    /* nothing is passed over: what cannot be looked at is an error */
    bool truncated; /* there is more: too deep, too long a path, too large a directory */
    const char *name; /* and mode of what was given last */
    uint16_t mode;
    char path[PATH_MAX]; /* from the root of the walk */
    size_t path_room;
    char buffer[WALK_BUFFER] __attribute__((aligned(8)));
};

struct walk_entry {
    int parent; /* its directory */
    const char *name;
    const char *path; /* from the root of the walk; NULL without paths */
    struct statx is;
};

enum walk_event { WALK_END = 0, WALK_ENTRY = 1, WALK_LEFT = 2 };

/* Takes over `root`, and TRAIL_MEMORY and WALK_NAMES of `memory`. `path_room` is the limit for a path in bytes, and
 * longer ones don't appear; 0: no paths, and no limit. `strict`: no skips. 0 or -errno. */
int walk_open_take(struct walk *, int *root, struct arena *memory, size_t deepest, size_t path_room,
                   bool strict);

/* WALK_ENTRY; WALK_LEFT: the end of the last directory entered, and the walk is in `parent` again, with `is.mode` of
 * the former; WALK_END; or -errno. */
int walk_next(struct walk *, struct walk_entry *);

void walk_close(struct walk *);
