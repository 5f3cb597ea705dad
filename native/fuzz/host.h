/* A host of the script's: it sends frames, and reads the answers, which are always whole frames. */
#pragma once

#include "../agent.h"
#include "world.h"

enum { QUIET_TURNS = 12, MOST_GIVEN = 4 };
static const uint64_t QUIET = 200000u;

static struct {
    struct reader script;
    void (*turned)(struct loop *);
    struct timer tick;
    bool (*harms)(uint16_t code, struct reader body); /* NULL: no request harms libFuzzer itself */
    int fd, given;                                    /* `given` goes with frames */
    uint32_t latest;
    unsigned quiet;
    unsigned char said[2 * (HEADER_BYTES + LIMIT_BODY)];
    size_t end;
} host;

static void tick(struct timer *timer)
{
    (void)timer;
}

static void hear(void)
{
    struct frame frame;
    long got, length;
    while ((got = sys_recv(host.fd, host.said + host.end, sizeof host.said - host.end, MSG_DONTWAIT)) > 0) {
        struct reader rest = reader_of(host.said, host.end + (size_t)got), skipped;
        while ((length = frame_parse(rest, &frame)) > 0) {
            must(frame.kind != KIND_OPEN && frame.channel <= host.latest && !frame.descriptor_count);
            must(!get_part(&rest, (size_t)length, &skipped));
        }
        must(!length);
        memmove(host.said, rest.at, rest.left);
        host.end = rest.left;
    }
}

static void say(uint16_t kind, uint16_t code, uint32_t channel, struct reader body, size_t given)
{
    unsigned char frame[HEADER_BYTES + 512];
    const int fds[MOST_GIVEN] = {host.given, host.given, host.given, host.given};
    struct writer to = writer_of(frame, sizeof frame);
    must(!put_u32(&to, (uint32_t)body.left) && !put_u16(&to, kind) && !put_u16(&to, code) && !put_u32(&to, channel));
    must(!put_u32(&to, (uint32_t)given) && !put_bytes(&to, body.at, body.left));
    (void)send_fds(host.fd, frame, to.used, fds, given);
}

/* One step of the script: kind, code, which channel, how many descriptors, and the body. False: it is over. */
static bool host_step(void)
{
    uint8_t kind, code, which, given, length;
    struct reader body;
    if (get_number(&host.script, &kind) || get_number(&host.script, &code) || get_number(&host.script, &which) ||
        get_number(&host.script, &given) || get_number(&host.script, &length))
        return false;
    must(!get_part(&host.script, min_size(2u * length, host.script.left), &body));
    if (!host.harms || !host.harms(code, body))
        say(kind, code, kind == KIND_OPEN ? ++host.latest : which, body, given % (MOST_GIVEN + 1));
    return true;
}

/* The host has the script, speaks first, and takes its step after each turn of the agent's loop: `turned`. */
static void host_begin(struct agent *agent, struct reader script, void (*turned)(struct loop *))
{
    static const struct host_hello_message hello = {.version = PROTOCOL_VERSION};
    unsigned char bytes[64];
    struct writer body = writer_of(bytes, sizeof bytes);
    int pair[2];
    memset(&host, 0, sizeof host);
    must(!sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    host.script = script;
    host.turned = agent->loop.turned;
    agent->loop.turned = turned;
    host.tick.fire = tick;
    host.fd = pair[0];
    host.given = world.null;
    agent_connect(agent, pair[1]);
    must(agent->connections[0] && !message_put(&body, &host_hello_shape, &hello));
    say(KIND_HELLO, 0, 0, reader_of(body.base, body.used), 0);
}
