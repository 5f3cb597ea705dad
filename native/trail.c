#include "sys.h"
#include "walk.h"

/* In two steps: gVisor follows a link where O_DIRECTORY stands beside O_NOFOLLOW, unless it is O_PATH. */
int open_directory(int parent, const char *name)
{
    HELD int held = TRY(sys_openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0));
    return sys_openat(held, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
}

static int step_identify(int fd, struct trail_step *step)
{
    struct statx is;
    TRY(sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is));
    step->id = id_of(&is);
    return 0;
}

int trail_open(struct trail *trail, int root, struct arena *memory)
{
    TRY(arena_split(memory, TRAIL_MEMORY, &trail->memory));
    trail->steps = (struct trail_step *)(void *)trail->memory.base;
    trail->depth = 0;
    trail->first_open = 1;
    trail->names = TRAIL_MEMORY;
    trail->steps[0] = (struct trail_step){.fd = root, .name = TRAIL_MEMORY};
    return step_identify(root, &trail->steps[0]);
}

int trail_open_at(struct trail *trail, int directory, struct arena *memory)
{
    int root = sys_openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (root < 0)
        root = TRY(sys_openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    return trail_open(trail, root, memory);
}

void trail_close(struct trail *trail)
{
    for (size_t i = trail->first_open; i <= trail->depth; i++)
        fd_close(&trail->steps[i].fd);
    fd_close(&trail->steps[0].fd);
}

int trail_fd(const struct trail *trail)
{
    return trail->steps[trail->depth].fd;
}

const char *trail_name(const struct trail *trail, size_t depth)
{
    must(depth > 0 && depth <= trail->depth);
    return (const char *)trail->memory.base + trail->steps[depth].name;
}

int trail_down(struct trail *trail, const char *name)
{
    size_t size = strlen(name) + 1;
    if ((trail->depth + 2) * sizeof trail->steps[0] + size > trail->names)
        return -ENAMETOOLONG;
    struct trail_step step = {.fd = TRY(open_directory(trail_fd(trail), name))};
    int error = step_identify(step.fd, &step);
    if (error) {
        fd_close(&step.fd);
        return error;
    }
    trail->names -= size;
    memcpy(trail->memory.base + trail->names, name, size);
    step.name = (uint32_t)trail->names;
    trail->steps[++trail->depth] = step;
    if (trail->depth - trail->first_open + 2 > TRAIL_OPEN) /* the root is one of them */
        fd_close(&trail->steps[trail->first_open++].fd);
    return 0;
}

static bool step_is(int fd, const struct trail_step *step)
{
    struct statx is;
    return fd >= 0 && !sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is) && is_file(step->id, &is);
}

/* The directory of a step that was closed. `below` is the one of the next. */
static int trail_reopen(const struct trail *trail, size_t number, int below)
{
    const struct trail_step *wanted = &trail->steps[number];
    int fd = sys_openat(below, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (step_is(fd, wanted))
        return fd;
    fd_close(&fd);
    for (size_t i = 1; i <= number; i++) {
        int parent = i == 1 ? trail->steps[0].fd : fd;
        int next = open_directory(parent, (const char *)trail->memory.base + trail->steps[i].name);
        if (i > 1)
            fd_close(&fd);
        if (next < 0)
            return -ESTALE;
        fd = next;
    }
    if (step_is(fd, wanted))
        return fd;
    fd_close(&fd);
    return -ESTALE;
}

int trail_up(struct trail *trail)
{
    must(trail->depth > 0);
    struct trail_step *left = &trail->steps[trail->depth--];
    int error = 0;
    if (trail->depth > 0 && trail->depth < trail->first_open) {
        int fd = trail_reopen(trail, trail->depth, left->fd);
        trail->steps[trail->depth].fd = fd < 0 ? -1 : fd;
        trail->first_open = trail->depth;
        error = fd < 0 ? fd : 0;
    }
    if (!trail->depth)
        trail->first_open = 1;
    fd_close(&left->fd);
    trail->names += strlen((const char *)trail->memory.base + left->name) + 1;
    return error;
}
