/* A host sends any frames to an agent: requests about commands, connections inside and files, and what follows each on
 * its channel. Its root directory is separate, without /proc, and its only program is `guest`, which ends at once. Its
 * network is separate too. The answers are always whole frames. */
#include "../agent.h"
#include "world.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

enum { QUIET_TURNS = 12, MOST_GIVEN = 4 };
static const uint64_t QUIET = 200000u;

static struct {
    struct agent agent;
    void (*turned)(struct loop *);
    struct timer tick;
    struct reader script;
    int host;
    uint32_t latest;
    unsigned quiet;
    unsigned char said[2 * (HEADER_BYTES + LIMIT_BODY)];
    size_t end;
} the;

static void tick(struct timer *timer)
{
    (void)timer;
}

static void hear(void)
{
    struct frame frame;
    long got, length;
    while ((got = sys_recv(the.host, the.said + the.end, sizeof the.said - the.end, MSG_DONTWAIT)) > 0) {
        struct reader rest = reader_of(the.said, the.end + (size_t)got), skipped;
        while ((length = frame_parse(rest, &frame)) > 0) {
            must(frame.kind != KIND_OPEN && frame.channel <= the.latest && !frame.descriptor_count);
            must(!get_part(&rest, (size_t)length, &skipped));
        }
        must(!length);
        memmove(the.said, rest.at, rest.left);
        the.end = rest.left;
    }
}

static void say(uint16_t kind, uint16_t code, uint32_t channel, struct reader body, size_t given)
{
    unsigned char frame[HEADER_BYTES + 512];
    const int fds[MOST_GIVEN] = {world.null, world.null, world.null, world.null};
    struct writer to = writer_of(frame, sizeof frame);
    must(!put_u32(&to, (uint32_t)body.left) && !put_u16(&to, kind) && !put_u16(&to, code) && !put_u32(&to, channel));
    must(!put_u32(&to, (uint32_t)given) && !put_bytes(&to, body.at, body.left));
    (void)send_fds(the.host, frame, to.used, fds, given);
}

/* One step of the script: kind, code, which channel, how many descriptors, and the body. */
static void turned(struct loop *loop)
{
    uint8_t kind, code, which, given, length;
    struct reader body;
    the.turned(loop);
    if (loop->stopped)
        return;
    hear();
    bool over = get_u8(&the.script, &kind) || get_u8(&the.script, &code) || get_u8(&the.script, &which) ||
                get_u8(&the.script, &given) || get_u8(&the.script, &length);
    if (!over) {
        must(!get_part(&the.script, min_size(2u * length, the.script.left), &body));
        say(kind, code, kind == KIND_OPEN ? ++the.latest : which, body, given % (MOST_GIVEN + 1));
    } else if (++the.quiet == QUIET_TURNS) {
        fd_close(&the.host);
    }
    timer_set(loop, &the.tick, loop_now() + (over ? QUIET : 0)); /* a child has a moment for its end */
}

/* As agent.c does at its start. */
static void begin(void)
{
    static const struct host_hello_message hello = {.version = PROTOCOL_VERSION};
    unsigned char bytes[64];
    struct writer body = writer_of(bytes, sizeof bytes);
    struct agent *agent = &the.agent;
    int pair[2];
    must(!agent_open(agent) && !arena_open(&agent->arena, ARENA_BYTES) && (agent->stack = sys_map(STACK_BYTES)));
    must(!sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    agent->lifeline.fd = agent->oom_score = agent->events[0] = agent->events[1] = -1;
    agent->null = world.null;
    agent->top_tag = TOP_TAG;
    agent->alone = true;
    the.turned = agent->loop.turned;
    agent->loop.turned = turned;
    the.tick.fire = tick;
    the.host = pair[0];
    agent_connect(agent, pair[1], true);
    must(agent->connections[0] && !message_put(&body, &host_hello_shape, &hello));
    say(KIND_HELLO, 0, 0, reader_of(body.base, body.used), 0);
}

static void drop(struct child *table, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ring_free(&table[i].in.ring);
        ring_free(&table[i].out[0].ring);
        ring_free(&table[i].out[1].ring);
    }
}

static void end(void)
{
    struct agent *agent = &the.agent;
    drop(agent->commands, LIMIT_COMMANDS);
    drop(agent->helpers, LIMIT_HELPERS);
    drop(agent->relays, LIMIT_RELAYS);
    arena_close(&agent->arena);
    sys_unmap(agent->stack, STACK_BYTES);
    while (CALL4(wait4, -1, 0, WNOHANG, 0) > 0)
        ;
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    if (!world.free)
        world_open();
    memset(&the, 0, sizeof the);
    the.script = reader_of(bytes, size);
    world_begin();
    (void)sys_linkat(world.here, "guest", world.files, "guest", 0);
    begin();
    loop_run(&the.agent.loop);
    end();
    world_end();
    return 0;
}
