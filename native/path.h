/* Paths as a request names them: absolute, at most LIMIT_PATH bytes, resolved by the kernel as the user. */
#pragma once

#include "op.h"

/* A copy with a NUL; slashes at its end are gone. 0, -EINVAL if it is not absolute, -ENOMEM. */
int path_of(struct op *, struct reader field, char **path);

/* As answers name it: without doubled slashes and dots, and none at its end. False, and it is left alone: ".." stands in it,
 * and a link may come before. */
bool path_tidy(char *path);

/* Splits `path` at its last slash: it becomes the directory ("/" at least), `*name` what is in it ("" of the root). */
void path_split(char *path, const char **name);

/* Makes the directories of `path` that are missing, below `directory` if it is relative. 0 or -errno. */
int path_make(int directory, char *path);

/* A path by which the kernel finds what the descriptor stands for, where there is a /proc. */
enum { PATH_FD = 16 + DECIMAL_SIZE };
const char *path_of_fd(int fd, char to[PATH_FD]);

/* How long the part is that begins at `part`, and whether it is that. */
size_t part_size(const char *part);
bool is_part(const char *part, size_t size, const char *wanted);
