#include "walk.h"
#include "sys.h"

struct walk_name {
    struct walk_name *next;
    char text[];
};

/* Merges sorted runs of 1, 2, 4, ... names; `spare` is as large as `names`. Returns which of both holds the result. */
static const char **merge_sorted(const char **names, const char **spare, size_t count)
{
    for (size_t run = 1; run < count; run *= 2) {
        for (size_t start = 0; start < count; start += 2 * run) {
            size_t middle = min_size(start + run, count), end = min_size(start + 2 * run, count);
            size_t left = start, right = middle;
            for (size_t to = start; to < end; to++)
                if (left < middle && (right == end || strcmp(names[left], names[right]) <= 0))
                    spare[to] = names[left++];
                else
                    spare[to] = names[right++];
        }
        const char **filled = spare;
        spare = names;
        names = filled;
    }
    return names;
}

/* 0; -ENOMEM: the names do not fit; or what the kernel says. */
static int walk_read_names(struct walk *walk, struct walk_level *level)
{
    struct walk_name *first = NULL;
    struct listing listing = {.fd = trail_fd(&walk->trail), .buffer = walk->buffer, .size = sizeof walk->buffer};
    const struct directory_entry *entry;
    while (TRY(listing_next(&listing, &entry))) {
        size_t size = strlen(entry->name) + 1;
        struct walk_name *name = arena_take(&walk->memory, sizeof *name + size);
        if (!name)
            return -ENOMEM;
        memcpy(name->text, entry->name, size);
        name->next = first;
        first = name;
        level->count++;
    }
    const char **names = arena_array(&walk->memory, level->count, sizeof *names);
    const char **spare = arena_array(&walk->memory, level->count, sizeof *names);
    if (!names || !spare)
        return -ENOMEM;
    size_t at = level->count;
    for (struct walk_name *name = first; name; name = name->next)
        names[--at] = name->text;
    level->names = merge_sorted(names, spare, level->count);
    return 0;
}

/* A level for the directory that the trail has come to. */
static int walk_enter(struct walk *walk, size_t path)
{
    size_t mark = walk->memory.used;
    struct walk_level *level = arena_take(&walk->memory, sizeof *level);
    if (!level)
        return -ENOMEM;
    size_t empty = walk->memory.used;
    int error = walk_read_names(walk, level);
    if (error == -ENOMEM && !walk->strict) {
        walk->truncated = true;
        level->count = 0;
        arena_rewind(&walk->memory, empty);
    } else if (error) {
        arena_rewind(&walk->memory, mark);
        return error;
    }
    level->mark = mark;
    level->up = walk->level;
    level->path = path;
    level->mode = walk->mode;
    walk->level = level;
    return 0;
}

int walk_open(struct walk *walk, int root, struct arena *memory, size_t deepest, size_t path_room, bool strict)
{
    walk->deepest = deepest;
    walk->strict = strict;
    walk->path_room = min_size(path_room, sizeof walk->path - 1);
    TRY(arena_split(memory, WALK_NAMES, &walk->memory));
    TRY(trail_open(&walk->trail, root, memory));
    return walk_enter(walk, 0);
}

/* Of the last four we know that they are not about the one directory. */
static bool walk_is_fatal(const struct walk *walk, int error)
{
    return walk->strict || error == -ENFILE || error == -EMFILE || error == -ENOMEM || error == -ESTALE;
}

static int walk_descend(struct walk *walk)
{
    if (walk->trail.depth + 1 >= walk->deepest)
        return 0;
    int error = trail_down(&walk->trail, walk->name);
    walk->truncated |= error == -ENAMETOOLONG;
    if (!error) {
        error = walk_enter(walk, strlen(walk->path));
        TRY(error ? trail_up(&walk->trail) : 0);
    }
    return walk_is_fatal(walk, error) ? error : 0;
}

static bool walk_append(struct walk *walk, const char *name)
{
    size_t at = walk->level->path, size = strlen(name);
    if (at + (at > 0) + size > walk->path_room)
        return false;
    if (at)
        walk->path[at++] = '/';
    memcpy(walk->path + at, name, size + 1);
    return true;
}

int walk_next(struct walk *walk, struct walk_entry *entry)
{
    if (walk->enter) {
        walk->enter = false;
        TRY(walk_descend(walk));
    }
    for (;;) {
        struct walk_level *level = walk->level;
        entry->parent = trail_fd(&walk->trail);
        if (level->next == level->count) {
            if (!level->up)
                return WALK_END;
            uint16_t mode = level->mode;
            walk->level = level->up;
            arena_rewind(&walk->memory, level->mark);
            TRY(trail_up(&walk->trail));
            entry->parent = trail_fd(&walk->trail);
            entry->is.mode = mode;
            return WALK_LEFT;
        }
        walk->name = entry->name = level->names[level->next++];
        if (walk->path_room && !walk_append(walk, entry->name)) {
            walk->truncated = true;
            continue;
        }
        entry->path = walk->path_room ? walk->path : NULL;
        int error = sys_statx(entry->parent, entry->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_MNT_ID, &entry->is);
        if (error) {
            TRY(walk_is_fatal(walk, error) ? error : 0);
            continue;
        }
        walk->mode = entry->is.mode;
        walk->enter = is_directory(&entry->is);
        return WALK_ENTRY;
    }
}
