/* Loops over read(2), write(2) and getdents64(2). */
#pragma once

#include "arena.h"
#include "bytes.h"
#include "kernel.h"

/* All bytes, or -errno. */
int write_all(int fd, const void *bytes, size_t size);
/* As much of a file as one read gives: bytes, or -errno. */
long read_file(int directory, const char *path, void *to, size_t size);
/* A copy with a NUL behind it, of as much as fits into `size` bytes. Returns `to`. */
char *text_in(char *to, size_t size, struct reader text);
/* One write, into a file that is there. 0 or -errno. */
int write_file(int directory, const char *path, const char *text);

/* Bytes that wait until a descriptor takes them, in memory of the owner. */
struct queue {
    unsigned char *base;
    size_t size;
    size_t first, end; /* what waits */
};

static inline size_t queued(const struct queue *queue)
{
    return queue->end - queue->first;
}

/* Room for `size` bytes at the end, which the caller fills in; NULL: there is none. */
unsigned char *queue_append(struct queue *, size_t size);
/* Writes as much as is taken now. 0 or -errno, also of what takes nothing now. */
int queue_write(struct queue *, int fd);

/* Bytes with descriptors, which stay ours. As send(2). */
long send_fds(int socket, const void *bytes, size_t size, const int *fds, size_t count);
/* As recv(2), with at most `*count` descriptors. -EMSGSIZE: there were more, and all are closed. */
long receive_fds(int socket, void *to, size_t size, int flags, int *fds, size_t *count);

static inline bool is_directory(const struct statx *is)
{
    return (is->mode & S_IFMT) == S_IFDIR;
}

static inline bool is_regular(const struct statx *is)
{
    return (is->mode & S_IFMT) == S_IFREG;
}

/* When it was modified, in nanoseconds since 1970. False: no number holds them. */
bool modified_at(const struct statx *, int64_t *nanoseconds);
struct timespec timespec_of(int64_t nanoseconds);

/* The identity of a file. */
struct file_id {
    uint64_t inode;
    uint32_t major, minor;
};

static inline bool is_file(struct file_id id, const struct statx *is)
{
    return id.inode == is->inode && id.major == is->device_major && id.minor == is->device_minor;
}

static inline struct file_id id_of(const struct statx *is)
{
    return (struct file_id){is->inode, is->device_major, is->device_minor};
}

static inline bool is_same_file(const struct statx *a, const struct statx *b)
{
    return is_file(id_of(a), b);
}

/* Known files, by hash: three quarters of FILES_MOST. */
enum { FILES_MOST = 1 << 18 };
struct files {
    struct file_known {
        struct file_id id;
        const char *path; /* NULL: free */
    } *known;
    size_t count;
};

/* Takes unused `memory`. 0 or -ENOMEM. */
int files_open(struct files *, struct arena *memory);
/* The place of the file, or a free one. */
struct file_known *files_find(const struct files *, const struct statx *);
/* Remembers it, if there is room and it is not known. */
void files_add(struct files *, const struct statx *, const char *path);

/* Names of a directory, read into `buffer` with an alignment of 8. The rest is zero at first. */
struct listing {
    int fd;
    char *buffer;
    size_t size;
    long at, end;
};

/* 1: the next one, which is neither "." nor ".." and lives until the next call; 0: there is none; or -errno. */
int listing_next(struct listing *, const struct directory_entry **);
