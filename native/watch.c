/* WATCH: changes of files, from inotify(7). If the kernel lost some, or has no space for a watch, a change of the
 * kind OVERFLOW tells the host to list the directory again. It reports a file of WRITE by its final name only. */
#include "rows.h"
#include "sys.h"

enum {
    WATCH_SLOTS = 1 << 15, /* directories */
    WATCH_TABLE = 1 << 16,
    WATCH_BUFFER = 64 << 10,
    WATCH_MASK = IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF |
                 IN_EXCL_UNLINK,
    WATCH_BELOW = WATCH_MASK | IN_ONLYDIR | IN_DONT_FOLLOW,
};

enum watch_kind {
    WATCH_CREATED = 1,
    WATCH_MODIFIED = 2,
    WATCH_REMOVED = 3,
    WATCH_MOVED_FROM = 4,
    WATCH_MOVED_TO = 5,
    WATCH_OVERFLOW = 6,
};

/* A directory with a watch, or a former one above others. */
struct watch_slot {
    int32_t number; /* inotify's; -1: it is not watched any more */
    uint32_t parent; /* the root, slot 0, is its own; of a free slot, the next free one */
    uint32_t children;
    uint32_t next; /* of its chain in the table: slot + 1; 0: none */
    char name[NAME_MAX + 1];
};

struct watcher {
    int fd;
    bool recursive;
    uint32_t used, free; /* slots that were ever taken; the first of those that were given back, 0: none */
    struct watch_slot *slots;
    uint32_t *table;   /* by number: the first slot of a chain */
    uint32_t *pending; /* directories that have to be listed */
    size_t pending_count;
    enum watch_kind last_kind; /* of the last report */
    char last[PATH_MAX];
    char root[PATH_MAX], path[PATH_MAX], inner[PATH_MAX];
    char buffer[WATCH_BUFFER] __attribute__((aligned(8)));
    char entries[WATCH_BUFFER] __attribute__((aligned(8)));
    struct rows *rows;
};

/* The table: chains of slots. */

/* Returns the link in the table that leads to the slot of a number: slot + 1, or 0 without one. */
static uint32_t *watch_chain(const struct watcher *watcher, int32_t number)
{
    uint32_t *at = &watcher->table[(uint32_t)number % WATCH_TABLE];
    while (*at && watcher->slots[*at - 1].number != number)
        at = &watcher->slots[*at - 1].next;
    return at;
}

/* Slots */

static void watch_release(struct watcher *watcher, uint32_t slot)
{
    while (slot && watcher->slots[slot].number < 0 && !watcher->slots[slot].children) {
        uint32_t parent = watcher->slots[slot].parent;
        watcher->slots[slot].parent = watcher->free;
        watcher->free = slot;
        slot = parent;
        watcher->slots[slot].children--;
    }
}

static void watch_unwatch(struct watcher *watcher, uint32_t slot)
{
    uint32_t *at = watch_chain(watcher, watcher->slots[slot].number);
    *at = watcher->slots[slot].next;
    watcher->slots[slot].number = -1;
    watch_release(watcher, slot);
}

static bool watch_take_slot(struct watcher *watcher, uint32_t *slot)
{
    if (watcher->free) {
        *slot = watcher->free;
        watcher->free = watcher->slots[*slot].parent;
        return true;
    }
    if (watcher->used == WATCH_SLOTS)
        return false;
    *slot = watcher->used++;
    return true;
}

/* Returns whether `slot` is `below`, or above it. A directory can't move below itself. */
static bool watch_is_above(const struct watcher *watcher, uint32_t slot, uint32_t below)
{
    for (; below; below = watcher->slots[below].parent)
        if (below == slot)
            return true;
    return !slot;
}

/* The directory of that number is now `name` in `parent`. */
static int watch_enter(struct watcher *watcher, int32_t number, uint32_t parent, const char *name, uint32_t *slot)
{
    uint32_t *at = watch_chain(watcher, number);
    if (*at) { /* it was watched already, and has been moved */
        *slot = *at - 1;
        if (watch_is_above(watcher, *slot, parent))
            return -ELOOP;
        uint32_t old = watcher->slots[*slot].parent;
        watcher->slots[parent].children++;
        watcher->slots[old].children--;
        watcher->slots[*slot].parent = parent;
        memcpy(watcher->slots[*slot].name, name, strlen(name) + 1);
        watch_release(watcher, old);
        return 0;
    }
    if (!watch_take_slot(watcher, slot)) {
        (void)sys_inotify_rm_watch(watcher->fd, number);
        return -ENOSPC;
    }
    struct watch_slot *entry = &watcher->slots[*slot];
    entry->number = number;
    entry->parent = parent;
    entry->children = entry->next = 0;
    memcpy(entry->name, name, strlen(name) + 1);
    *at = *slot + 1;
    if (*slot)
        watcher->slots[parent].children++;
    return 0;
}

/* Writes the path of `name` (or, if it is empty, of the directory itself) into `to`. False: it is too long. */
static bool watch_path(const struct watcher *watcher, uint32_t slot, const char *name, char to[PATH_MAX])
{
    size_t at = PATH_MAX - 1, root = strcmp(watcher->root, "/") ? strlen(watcher->root) : 0;
    to[at] = 0;
    for (bool last = true;; last = false) {
        const char *part = last ? name : watcher->slots[slot].name;
        size_t size = strlen(part);
        if (!last && !slot)
            break;
        if (size) {
            if (size + 1 > at)
                return false;
            at -= size;
            memcpy(to + at, part, size);
            to[--at] = '/';
        }
        if (!last)
            slot = watcher->slots[slot].parent;
    }
    if (root > at)
        return false;
    memmove(to + root, to + at, PATH_MAX - at);
    memcpy(to, watcher->root, root);
    if (!*to)
        memcpy(to, "/", 2);
    return true;
}

/* Messages to the host */

static int watch_report(struct watcher *watcher, enum watch_kind kind, const char *path)
{
    struct change_message message = {.kind = (uint32_t)kind, .path = text_of(path)};
    /* One message for a file that a program writes in small pieces. */
    if (kind == watcher->last_kind && !strcmp(path, watcher->last))
        return 0;
    watcher->last_kind = kind;
    memcpy(watcher->last, path, strlen(path) + 1);
    TRY(rows_add(watcher->rows, &change_shape, &message));
    return op_flush(watcher->rows->op);
}

static int watch_report_overflow(struct watcher *watcher, uint32_t slot)
{
    return watch_path(watcher, slot, "", watcher->inner) ? watch_report(watcher, WATCH_OVERFLOW, watcher->inner) : 0;
}

/* Directories below */

/* Watches `name` in `parent`, to be listed then. 0 also if it has vanished, isn't a directory, or the user may not
 * watch it; -ENOSPC: no room. */
static int watch_add(struct watcher *watcher, uint32_t parent, const char *name)
{
    uint32_t slot;
    if (!watch_path(watcher, parent, name, watcher->path))
        return 0;
    int number = sys_inotify_add_watch(watcher->fd, watcher->path, WATCH_BELOW);
    if (number == -ENOSPC || number == -ENOMEM)
        return -ENOSPC;
    if (number < 0)
        return 0;
    int error = watch_enter(watcher, number, parent, name, &slot);
    if (error)
        return error == -ENOSPC ? error : 0;
    if (watcher->pending_count == WATCH_SLOTS)
        return -ENOSPC;
    watcher->pending[watcher->pending_count++] = slot;
    return 0;
}

static bool watch_is_directory(int directory, const struct directory_entry *entry)
{
    struct statx is;
    if (entry->type != DT_UNKNOWN)
        return entry->type == DT_DIR;
    return !sys_statx(directory, entry->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is) && is_directory(&is);
}

static int watch_list_entry(struct watcher *watcher, uint32_t slot, int fd, const struct directory_entry *entry, bool report)
{
    report = report && !is_temporary(entry->name);
    int error = watch_is_directory(fd, entry) ? watch_add(watcher, slot, entry->name) : 0;
    if (error == -ENOSPC && report)
        error = watch_report_overflow(watcher, slot);
    if (!error && report && watch_path(watcher, slot, entry->name, watcher->inner))
        error = watch_report(watcher, WATCH_CREATED, watcher->inner);
    return error;
}

static int watch_list(struct watcher *watcher, uint32_t slot, bool report)
{
    const struct directory_entry *entry;
    int error = 0;
    if (!watch_path(watcher, slot, "", watcher->path))
        return 0;
    HELD int fd = sys_openat(AT_FDCWD, watcher->path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    struct listing listing = {.fd = fd, .buffer = watcher->entries, .size = sizeof watcher->entries};
    while (!error && listing_next(&listing, &entry) > 0)
        error = watch_list_entry(watcher, slot, fd, entry, report);
    return error;
}

/* Watches every pending directory, and the ones in them. `report`: reports all files there, which may have come before
 * the watch. */
static int watch_below(struct watcher *watcher, bool report)
{
    int error = 0;
    while (!error && watcher->pending_count)
        error = watch_list(watcher, watcher->pending[--watcher->pending_count], report);
    return error;
}

/* Events */

/* The kernel reports a change of mode of a file that has no name yet (O_TMPFILE) under `#` and its number. */
static bool watch_is_nameless(const struct watcher *watcher, uint32_t mask, const char *name)
{
    struct statx is;
    return mask & IN_ATTRIB && *name == '#' &&
           sys_statx(AT_FDCWD, watcher->inner, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is) == -ENOENT;
}

static int watch_report_bits(struct watcher *watcher, uint32_t slot, uint32_t mask, const char *name)
{
    static const struct {
        uint32_t bit;
        enum watch_kind kind;
    } kinds[] = {
        {IN_MODIFY, WATCH_MODIFIED},     {IN_ATTRIB, WATCH_MODIFIED}, {IN_MOVED_FROM, WATCH_MOVED_FROM},
        {IN_MOVED_TO, WATCH_MOVED_TO},   {IN_CREATE, WATCH_CREATED},  {IN_DELETE, WATCH_REMOVED},
        {IN_DELETE_SELF, WATCH_REMOVED}, {IN_MOVE_SELF, WATCH_MOVED_FROM},
    };
    int error = 0;
    if (is_temporary(name) || !watch_path(watcher, slot, name, watcher->inner) || watch_is_nameless(watcher, mask, name))
        return 0;
    for (size_t i = 0; !error && i < ARRAY_SIZE(kinds); i++)
        if (mask & kinds[i].bit)
            error = watch_report(watcher, kinds[i].kind, watcher->inner);
    return error;
}

static int watch_event(struct watcher *watcher, const struct inotify_event *event)
{
    uint32_t found, slot;
    const char *name = event->size ? event->name : "";
    if (event->mask & IN_Q_OVERFLOW)
        return watch_report_overflow(watcher, 0);
    found = *watch_chain(watcher, event->watch);
    if (!found)
        return 0;
    slot = found - 1;
    if (event->mask & IN_IGNORED) {
        watch_unwatch(watcher, slot);
        return 0;
    }
    if (slot && event->mask & (IN_DELETE_SELF | IN_MOVE_SELF))
        return 0; /* its parent reports it */
    int error = watch_report_bits(watcher, slot, event->mask, name);
    if (!error && watcher->recursive && event->mask & IN_ISDIR && event->mask & (IN_CREATE | IN_MOVED_TO)) {
        error = watch_add(watcher, slot, name);
        if (error == -ENOSPC)
            error = watch_report_overflow(watcher, slot);
        if (!error)
            error = watch_below(watcher, true);
    }
    return error;
}

static int watch_events(struct watcher *watcher)
{
    long got = TRY(sys_read(watcher->fd, watcher->buffer, sizeof watcher->buffer));
    watcher->last_kind = 0;
    for (long at = 0; at < got;) {
        const struct inotify_event *event = (const struct inotify_event *)(void *)(watcher->buffer + at);
        at += (long)(sizeof *event + event->size);
        TRY(watch_event(watcher, event));
    }
    return 0;
}

static int watch_start(struct watcher *watcher)
{
    uint32_t slot;
    struct statx is;
    watcher->fd = TRY(sys_inotify_init1(O_CLOEXEC));
    int number = TRY(sys_inotify_add_watch(watcher->fd, watcher->root, WATCH_MASK));
    TRY(watch_enter(watcher, number, 0, "", &slot));
    TRY(sys_statx(AT_FDCWD, watcher->root, 0, STATX_BASIC_STATS, &is));
    if (!watcher->recursive || !is_directory(&is))
        return 0;
    watcher->pending[watcher->pending_count++] = slot;
    return watch_below(watcher, false);
}

int serve_watch(struct op *op)
{
    const struct watch_message *request = op->request;
    struct watcher *watcher = arena_take(&op->arena, sizeof *watcher);
    char *path;
    TRY(watcher ? path_of(op, request->path, &path) : -ENOMEM);
    (void)path_tidy(path);
    if (strlen(path) >= sizeof watcher->root)
        return -ENAMETOOLONG;
    memcpy(watcher->root, path, strlen(path) + 1);
    watcher->rows = rows_new(op, UINT64_MAX);
    watcher->recursive = request->flags & WATCH_RECURSIVE;
    watcher->slots = arena_untouched(&op->arena, WATCH_SLOTS * sizeof *watcher->slots);
    watcher->table = arena_untouched(&op->arena, WATCH_TABLE * sizeof *watcher->table);
    watcher->pending = arena_untouched(&op->arena, WATCH_SLOTS * sizeof *watcher->pending);
    if (!watcher->rows || !watcher->slots || !watcher->table || !watcher->pending)
        return -ENOMEM;
    watcher->rows->room = SIZE_MAX;
    op->step = "watch";
    TRY(watch_start(watcher));
    TRY(op_reply(op, NULL, NULL));
    while (watcher->slots[0].number >= 0)
        TRY(watch_events(watcher));
    return 0;
}
