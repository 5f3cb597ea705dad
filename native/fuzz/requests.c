/* A host sends any frames to an agent: requests about commands, connections inside and files, and what follows each on
 * its channel. Its root directory is separate, without /proc, and its only program is `guest`, which ends at once. Its
 * network is separate too. */
#include "host.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

static struct agent the_agent;

static void turned(struct loop *loop)
{
    host.turned(loop);
    if (loop->stopped)
        return;
    hear();
    bool over = !host_step();
    if (over && ++host.quiet == QUIET_TURNS)
        fd_close(&host.fd);
    timer_set(loop, &host.tick, loop_now() + (over ? QUIET : 0)); /* a child has a moment for its end */
}

/* As agent.c does at its start. */
static void begin(struct reader script)
{
    struct agent *agent = &the_agent;
    memset(agent, 0, sizeof *agent);
    must(!agent_open(agent) && !arena_open(&agent->arena, ARENA_BYTES) && (agent->stack = sys_map(STACK_BYTES)));
    agent->lifeline.fd = agent->oom_score = agent->events[0] = agent->events[1] = -1;
    agent->null = world.null;
    agent->top_tag = TOP_TAG;
    agent->alone = true;
    host_begin(agent, script, turned);
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
    struct agent *agent = &the_agent;
    drop(agent->commands, LIMIT_COMMANDS);
    drop(agent->helpers, LIMIT_HELPERS);
    drop(agent->relays, LIMIT_RELAYS);
    sys_unmap(agent->arena.base, agent->arena.size);
    sys_unmap(agent->stack, STACK_BYTES);
    while (CALL4(wait4, -1, 0, WNOHANG, 0) > 0)
        ;
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    if (!world.free)
        world_open();
    world_begin();
    (void)sys_linkat(world.here, "guest", world.files, "guest", 0);
    begin(reader_of(bytes, size));
    loop_run(&the_agent.loop);
    end();
    world_end();
    return 0;
}
