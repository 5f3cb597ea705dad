/* A connection: it converts bytes and descriptors to frames and back. Its caller decides on their meaning (channel.c).
 *
 * Any violation of the protocol sets `broken`. The agent closes the connection at the end of the turn. */
#pragma once

#include "io.h"
#include "loop.h"
#include "schema.h"

enum {
    HEADER_BYTES = 16,
    OUT_BYTES = 8 * LIMIT_BODY,
    OUT_FULL = OUT_BYTES / 2, /* beyond it no request is read and no DATA is sent: the rest is for final frames */
    IN_BYTES = HEADER_BYTES + LIMIT_OPEN_BODY,
};

struct frame {
    uint16_t kind;
    uint16_t code;
    uint32_t channel;
    struct reader body;
    int descriptors[LIMIT_DESCRIPTORS]; /* who takes one sets -1; what is left is closed */
    size_t descriptor_count;
};

struct wire {
    struct loop *loop;
    struct watch watch;
    bool broken;
    bool starved; /* a caller wanted to send DATA and found no room */
    unsigned char *in;
    size_t in_first; /* the next frame */
    size_t in_end;
    size_t in_taken; /* the frame that is being handled */
    bool in_grown;   /* a long frame has touched the pages behind */
    struct queue out;
    int descriptors[2 * LIMIT_DESCRIPTORS];
    size_t descriptor_count;
};

/* Takes a socket that doesn't block, also if it fails. The rest is zero before. */
int wire_open(struct wire *, struct loop *, int fd);
void wire_close(struct wire *);

/* One frame out of `bytes`. Its size; 0: not whole yet; -EBADMSG. A pure function, and so a fuzz target. */
long frame_parse(struct reader bytes, struct frame *);

/* Reads once. */
void wire_receive(struct wire *);
/* The next frame, if it is whole and there is room for answers: true. Its body lives until the next call. */
bool wire_next(struct wire *, struct frame *);
void frame_close(struct frame *);

void wire_send(struct wire *, enum kind_number, uint16_t code, uint32_t channel, const void *body, size_t size);
void wire_send_message(struct wire *, enum kind_number, uint32_t channel, const struct shape *, const void *message);
/* Room for DATA, header deducted. */
size_t wire_room(struct wire *);
/* A DATA frame whose `size` bytes, at most wire_room, the caller fills in. */
unsigned char *wire_send_data(struct wire *, uint16_t stream, uint32_t channel, size_t size);

/* Writes as much as the peer accepts, and sets the events to wait for. */
void wire_flush(struct wire *);
