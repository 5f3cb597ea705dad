/* Loops over read(2), write(2) and getdents64(2). */
#ifndef IO_H
#define IO_H

#include "kernel.h"

/* All bytes, or -errno. */
int write_all(int fd, const void *bytes, size_t size);
/* As much of a file as one read gives: bytes, or -errno. */
long read_file(const char *path, void *to, size_t size);
/* One write, into a file that is there. 0 or -errno. */
int write_file(int directory, const char *path, const char *text);

static inline bool is_directory(const struct statx *is)
{
    return (is->mode & S_IFMT) == S_IFDIR;
}

static inline bool is_regular(const struct statx *is)
{
    return (is->mode & S_IFMT) == S_IFREG;
}

static inline bool is_same_file(const struct statx *a, const struct statx *b)
{
    return a->inode == b->inode && a->device_major == b->device_major && a->device_minor == b->device_minor;
}

/* Names of a directory, read into `buffer`, which is aligned to 8. The rest is zero at first. */
struct listing {
    int fd;
    char *buffer;
    size_t size;
    long at, end;
};

/* 1: the next one, which is neither "." nor ".." and lives until the next call; 0: there is none; or -errno. */
int listing_next(struct listing *, const struct directory_entry **);

#endif
