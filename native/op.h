/* The interface of a file operation.
 *
 * helper.c forks a child of the agent for each one. The child may block; it has limits of its own (address space,
 * processor time, descriptors), and dies when the host lets go of the channel. So an operation is plain, blocking code:
 * it reads its request, answers once with op_reply, moves bytes through `in` and `out`, ends with op_exit or an error.
 *
 * Every descriptor that it opens is close-on-exec. It need not free memory or close anything: the child ends. */
#pragma once

#include "arena.h"
#include "message.h"

struct op {
    const void *request;   /* the message of the OPEN; its fields live as long as the operation */
    int in;                /* stream 0: a pipe or the host's own descriptor, blocking; -1 if the operation has none */
    int out;               /* stream 1: the same */
    int control;           /* to the agent; only the functions below use it */
    struct arena arena;    /* memory for the whole operation; OP_MEMORY bytes */
    const char *step;      /* what is being tried, as a word for the error: "open", "rename" */
    bool replied;
};

/* 0 or -errno. The child of one that has failed answers with ERROR: errno, `step`. One that returns 0 without a reply
 * has an empty reply. */
typedef int op_function(struct op *);

/* The REPLY, once, before the first byte on `out`. Without a shape it is empty. 0 or -errno. */
int op_reply(struct op *, const struct shape *, const void *message);

/* The EXIT: what is known only at the end. Last. */
int op_exit(struct op *, const struct shape *, const void *message);

/* All bytes, or an error: -EPIPE if the host does not read any more. */
int op_write(struct op *, const void *bytes, size_t size);

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
