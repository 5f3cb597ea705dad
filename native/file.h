/* What a name stands for, as the host is told. */
#pragma once

#include "kernel.h"
#include "op.h"
#include "schema.h"

enum { FILE_REGULAR = 1, FILE_DIRECTORY = 2, FILE_LINK = 3, FILE_OTHER = 4 };

struct file {
    struct file_message message;
    char target[PATH_MAX];
};

/* The message about a file whose status is `is`. */
void file_describe(struct file *, int directory, const char *name, const char *path, const struct statx *is);

/* REPLY or EXIT about the name in the directory. `path` is as the request has it, and is tidied. */
int file_reply(struct op *, int directory, const char *name, char *path, int flags);
int file_exit(struct op *, int directory, const char *name, char *path, int flags);
