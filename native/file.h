/* What a name stands for, as the host is told. */
#ifndef FILE_H
#define FILE_H

#include "kernel.h"
#include "op.h"
#include "schema.h"

enum { FILE_REGULAR = 1, FILE_DIRECTORY = 2, FILE_LINK = 3, FILE_OTHER = 4 };

struct file {
    struct file_message message;
    char target[PATH_MAX];
    unsigned char body[3 * PATH_MAX];
};

/* The body of a file whose status is `is`; what it points to lives in `file`. */
int file_body(struct file *, int directory, const char *name, const char *path, const struct statx *is,
              struct writer *body);

/* REPLY or EXIT about the name in the directory. `path` is as the request has it, and is tidied. */
int file_reply(struct op *, int directory, const char *name, char *path, int flags);
int file_exit(struct op *, int directory, const char *name, char *path, int flags);

struct reader text_of(const char *text);

#endif
