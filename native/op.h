/* The interface of a file operation.
 *
 * helper.c forks a child of the agent for each one. The child may block; it has separate limits (address space,
 * processor time, descriptors), and dies when the host closes the channel. So an operation is plain, blocking code:
 * it reads its request, answers once with op_reply, moves bytes through `in` and `out`, ends with op_exit or an error.
 *
 * Every descriptor that it opens is close-on-exec. It need not free memory or close anything: the child ends. */
#pragma once

#include "arena.h"
#include "kernel.h"
#include "schema.h"

enum { OP_BUFFER = 64 << 10 };

struct op {
    const void *request;   /* the message of the OPEN; its fields live as long as the operation */
    int in;                /* stream 0: a pipe or the host's own descriptor, blocking; -1 if the operation has none */
    int out;               /* stream 1: the same */
    int control;           /* to the agent; only the functions below use it */
    struct arena arena;    /* memory for the whole operation; OP_MEMORY bytes */
    const char *step;      /* what is being tried, as a word for the error: "open", "rename" */
    bool replied;
    size_t waiting;        /* bytes of the buffer that are not on `out` yet */
    unsigned char buffer[OP_BUFFER];
};

/* 0 or -errno. The child of one that has failed answers with ERROR: errno, `step`. One that returns 0 without a reply
 * has an empty reply. */
typedef int op_function(struct op *);

/* The REPLY, once, before the first byte on `out`. Without a shape it is empty. And the EXIT: what is known only at the
 * end. Last. 0 or -errno. */
typedef int op_teller(struct op *, const struct shape *, const void *message);
op_teller op_reply, op_exit;

/* All bytes, or an error: -EPIPE if the host does not read any more. They wait in the buffer until that is full, or a
 * flush, which the end of the operation is too. */
int op_write(struct op *, const void *bytes, size_t size);
int op_flush(struct op *);
/* One read of `fd`, of at most `most` bytes, which are then written. As read(2). */
long op_fill(struct op *, int fd, uint64_t most);

/* Up to `size` bytes from `in`; 0 at its end. */
int op_read(struct op *, void *to, size_t size);

/* After the end of `in`: 0 if the host has said EOF, -ECANCELED if it has merely gone. Rename only after 0. */
int op_committed(struct op *);

/* The table of operations (op.c): which function, which streams, which limits. */
enum op_streams { OP_NONE = 0, OP_IN = 1, OP_OUT = 2 };

struct op_entry {
    uint16_t number; /* OP_* of schema.h */
    uint8_t streams;
    uint16_t cpu_seconds;
    const struct shape *shape; /* of the request; NULL: it has no body */
    op_function *run;
};

const struct op_entry *op_find(uint16_t number);

/* Reads the request, and serves it. */
int op_serve(const struct op_entry *, struct op *, struct reader request);

/* The life of the child: 3 is control, 4 `in`, 5 `out`. */
_Noreturn void op_run(const struct op_entry *, struct reader request);

enum { OP_MEMORY = 96 << 20, OP_CONTROL = 3, OP_INPUT = 4, OP_OUTPUT = 5 };

/* Paths as a request names them: absolute, at most LIMIT_PATH bytes, resolved by the kernel as the user. */

/* A copy with a NUL; slashes at its end are gone. 0, -EINVAL if it is not absolute, -ENOMEM. */
int path_of(struct op *, struct reader field, char **path);

/* As answers name it: without doubled slashes and dots, and none at its end. False, and it is left alone: ".." stands in it,
 * and a link may come before. */
bool path_tidy(char *path);

/* Splits `path` at its last slash: it becomes the directory ("/" at least), `*name` what is in it ("" of the root). */
void path_split(char *path, const char **name);

/* Makes the directories of `path` that are missing, below `directory` if it is relative. 0 or -errno. */
int path_make(int directory, const char *path);

/* A path by which the kernel finds what the descriptor stands for, where there is a /proc. */
enum { PATH_FD = 16 + DECIMAL_SIZE };
const char *path_of_fd(int fd, char to[PATH_FD]);

/* How long the part is that begins at `part`, and whether it is that. */
size_t part_size(const char *part);
bool is_part(const char *part, size_t size, const char *wanted);

/* The object behind a name, as the host gets it. */

enum { FILE_REGULAR = 1, FILE_DIRECTORY = 2, FILE_LINK = 3, FILE_OTHER = 4 };

struct file {
    struct file_message message;
    char target[PATH_MAX];
};

/* The message about a file whose status is `is`. */
void file_describe(struct file *, int directory, const char *name, const char *path, const struct statx *is);

/* REPLY or EXIT about the name in the directory. `path` is as the request has it, and is tidied. */
int file_answer(struct op *, int directory, const char *name, char *path, int flags, op_teller *tell);

/* The operations. schema.py has the request and the answer of each. */
op_function serve_stat, serve_mkdir, serve_set;
op_function serve_remove, serve_move, serve_copy;
op_function serve_list, serve_find, serve_grep;
op_function serve_read, serve_write;
op_function serve_upload, serve_download;
op_function serve_watch;
