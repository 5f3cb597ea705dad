/* Connections between the host and the servers in a virtual machine or behind gVisor's sentry, over one port: the
 * agents' sockets and pid 1's own are at their other end. The host's part is src/paddock/vmm/_trunk.py.
 *
 * A frame is u32 length, u16 kind, u16 zero, u32 connection, and `length` bytes. All numbers are little-endian.
 *
 *   HELLO   host: it is a new one, and all connections end. Guest: the answer.
 *   OPEN    host: a connection to the server with the following name
 *   DATA    of a connection
 *   CREDIT  u32: the sender may send so many more bytes; each direction begins with LINE_WINDOW
 *   END     of a connection, after all its data; both sides send it
 *   STILL   host: stop sending. Guest: the answer, after its last frame: no data is under way
 *   GO      host: after STILL, to the same guest. A copy of it gets a HELLO instead */
#pragma once

#include "bytes.h"
#include "loop.h"
#include "ring.h"

enum line_kind { LINE_HELLO = 1, LINE_OPEN, LINE_DATA, LINE_CREDIT, LINE_END, LINE_STILL, LINE_GO };
enum {
    LINES = 64,
    LINE_HEADER = 12,
    LINE_BODY = 1 << 15,
    LINE_WINDOW = 1 << 18,
    LINE_QUEUE = 1 << 18,
};

struct lines;

struct line {
    struct watch watch; /* of our end of a socket pair */
    struct lines *lines;
    uint32_t number;  /* 0: free */
    uint32_t credit;  /* bytes that may still be sent to the host */
    uint32_t written; /* to the socket, for which the host has got no credit yet */
    bool ended;       /* by us */
    bool ending;      /* by the host: when all is written */
    struct ring queue; /* from the host, for the socket */
};

struct lines {
    struct loop *loop;
    struct watch reader, writer; /* the port; both may be one */
    struct timer later; /* checks a port without a process at its other side again */
    bool still;
    /* A connected socket, of which the other end serves `name`; or -errno. */
    int (*open)(struct lines *, struct reader name);
    unsigned char *in, *out;
    size_t in_end, out_first, out_end;
    struct line line[LINES];
};

/* Takes both. 0 or -errno. */
int lines_begin(struct lines *, struct loop *, int reader, int writer);
