#include "op.h"
#include "sys.h"

int path_of(struct op *op, struct reader field, char **path)
{
    op->step = "path";
    if (!field.left || field.at[0] != '/')
        return -EINVAL;
    *path = arena_take(&op->arena, field.left + 2); /* path_split wants one more */
    if (!*path)
        return -ENOMEM;
    memcpy(*path, field.at, field.left);
    for (size_t size = field.left; size > 1 && (*path)[size - 1] == '/';)
        (*path)[--size] = 0;
    return 0;
}

size_t part_size(const char *part)
{
    size_t size = 0;
    while (part[size] && part[size] != '/')
        size++;
    return size;
}

bool is_part(const char *part, size_t size, const char *wanted)
{
    return size == strlen(wanted) && !memcmp(part, wanted, size);
}

bool path_tidy(char *path)
{
    char *start = path + (*path == '/'), *to = start;
    for (const char *at = path; *at; at += part_size(at), at += *at == '/')
        if (is_part(at, part_size(at), ".."))
            return false;
    for (const char *at = path; *at; at += *at == '/') {
        size_t size = part_size(at);
        if (size && !is_part(at, size, ".")) {
            if (to > start)
                *to++ = '/';
            memmove(to, at, size);
            to += size;
        }
        at += size;
    }
    *to = 0;
    return true;
}

void path_split(char *path, const char **name)
{
    size_t slash = strlen(path);
    while (slash && path[slash - 1] != '/')
        slash--;
    *name = path + slash;
    if (slash <= 1) {
        /* Of "/name" the name moves one on, so that "/" can be ended before it. Paths have a NUL and room for it. */
        size_t size = strlen(*name) + 1;
        memmove(path + slash + 1, *name, size);
        path[slash] = 0;
        *name = path + slash + 1;
        return;
    }
    while (slash > 1 && path[slash - 1] == '/')
        path[--slash] = 0;
}

int path_make(int directory, const char *path)
{
    char part[PATH_MAX];
    HELD int fd = sys_openat(directory, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd != -ENOENT)
        return fd < 0 ? fd : 0;
    for (size_t at = 1; at < PATH_MAX; at++) {
        if (path[at] && path[at] != '/')
            continue;
        memcpy(part, path, at);
        part[at] = 0;
        int error = sys_mkdirat(directory, part, 0777);
        if (error && error != -EEXIST)
            return error;
        if (!path[at])
            return 0; /* the open finds out whether an existing one is a directory */
    }
    return -ENAMETOOLONG;
}

const char *path_of_fd(int fd, char to[PATH_FD])
{
    char number[DECIMAL_SIZE];
    return JOIN(to, PATH_FD, "/proc/self/fd/", decimal(number, (uint64_t)fd));
}
