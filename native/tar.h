/* Tar archives: one reader and one writer, each over a stream, each in memory of a fixed size.
 *
 * The reader accepts ustar, pax (POSIX.1-2001) and the long names of GNU tar. It refuses an archive with a meaning on
 * which archivers disagree. `problem` names the reason. */
#pragma once

#include "bytes.h"

enum {
    TAR_BLOCK = 512,
    TAR_EXTENSION = 64 << 10, /* bytes of an extended header */
    TAR_PATH = 4096,          /* with its NUL */
};

enum tar_type { TAR_FILE, TAR_HARD_LINK, TAR_LINK, TAR_DIRECTORY, TAR_FIFO, TAR_DEVICE };

struct tar_member {
    enum tar_type type;
    unsigned mode;
    uint64_t size; /* of a file */
    int64_t modified; /* seconds since 1970 */
    const char *path; /* in the reader's memory until the next member */
    const char *target; /* of a link */
    uint32_t uid, gid; /* as read */
    struct reader more; /* to be written: further records (tar_record_put) */
};

/* Up to `size` bytes; 0 at the end; or -errno. */
typedef int tar_source(void *context, void *to, size_t size);
/* All of them, or -errno. */
typedef int tar_sink(void *context, const void *bytes, size_t size);

struct tar_reader {
    tar_source *read;
    void *context;
    const char *problem;
    bool whole;       /* FIFOs and devices are taken, and `records` are of interest */
    struct reader records; /* records of the member's own extended header, before its data */
    uint64_t left;    /* of the member's bytes */
    uint32_t padding; /* behind them */
    char path[TAR_PATH], target[TAR_PATH];
    unsigned char block[TAR_BLOCK];
    unsigned char extension[TAR_EXTENSION];
};

void tar_start(struct tar_reader *, tar_source *read, void *context);

/* 1; 0: the archive's end; -EBADMSG: `problem`; or the error of `read`. It skips the rest of the last member. After
 * any other result than 1 no member follows. */
int tar_next(struct tar_reader *, struct tar_member *);

/* Bytes of the member: how many, at most `size`; 0 at its end; or as tar_next. */
int tar_data(struct tar_reader *, void *to, size_t size);

/* The next of the records "LENGTH KEY=VALUE\n" of an extended header, nothing between them and nothing behind. 1; 0: there
 * is none; -EBADMSG. */
int tar_record_next(struct reader *records, struct reader *key, struct reader *value);

/* Writes one. 0; -ENOBUFS, without writing. */
int tar_record_put(struct writer *, const char *key, struct reader value);

/* Writes the headers before a member's bytes, with an extended one if ustar doesn't suffice. 0, or the error of
 * `write`; -EINVAL: an invalid member. */
int tar_put(tar_sink *write, void *context, const struct tar_member *, uint32_t uid, uint32_t gid);

/* Writes the padding after them. */
int tar_pad(tar_sink *write, void *context, uint64_t size);

/* The archive's end. */
int tar_finish(tar_sink *write, void *context);
