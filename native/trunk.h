/* Connections between the host and the servers in a virtual machine or behind gVisor's sentry, over one port: the
 * agents' sockets and pid 1's own are at their other end. The host's part is src/paddock/vmm/_trunk.py.
 *
 * A frame is u32 length, u16 kind, u16 zero, u32 connection, and `length` bytes. All numbers are little-endian.
 *
 *   HELLO   host: it has just started, and all connections end. Guest: the answer.
 *   OPEN    host: a connection to the server with the following name
 *   DATA    of a connection
 *   CREDIT  u32: the sender may send so many more bytes; each direction begins with TRUNK_WINDOW
 *   END     of a connection, after all its data; both sides send it
 *   PAUSE   host: stop sending. Guest: the answer, after its last frame: no data is under way
 *   RESUME  host: after PAUSE, to the same guest. A copy of it gets a HELLO instead */
#pragma once

#include "bytes.h"
#include "io.h"
#include "loop.h"
#include "ring.h"

enum trunk_kind { TRUNK_HELLO = 1, TRUNK_OPEN, TRUNK_DATA, TRUNK_CREDIT, TRUNK_END, TRUNK_PAUSE, TRUNK_RESUME };
enum {
    TRUNK_CONNECTIONS = 64,
    TRUNK_HEADER = 12,
    TRUNK_BODY = 1 << 15,
    TRUNK_WINDOW = 1 << 18,
    TRUNK_QUEUE = 1 << 18,
};

struct trunk;

struct trunk_connection {
    struct watch watch; /* of our end of a socket pair */
    struct trunk *trunk;
    uint32_t number;  /* 0: free */
    uint32_t credit;  /* bytes that may still be sent to the host */
    uint32_t written; /* to the socket, for which the host has got no credit yet */
    bool ended;       /* by us */
    bool ending;      /* by the host: when all is written */
    struct ring queue; /* from the host, for the socket */
};

struct trunk {
    struct loop *loop;
    struct watch reader, writer; /* the port; both may be one */
    struct timer retry; /* looks again at a port whose other side no process has open */
    bool paused;
    /* A connected socket, of which the other end serves `name`; or -errno. */
    int (*open)(struct trunk *, struct reader name);
    unsigned char *in;
    size_t in_end;
    struct queue out;
    struct trunk_connection connections[TRUNK_CONNECTIONS];
};

/* Owns both descriptors from now on. 0 or -errno. */
int trunk_begin(struct trunk *, struct loop *, int reader, int writer);
