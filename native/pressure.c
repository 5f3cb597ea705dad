/* Forks are refused while memory is short behind gVisor's sentry.
 *
 * A process that is forked there costs megabytes where Linux shares pages: the sentry copies memory in units of 2 MiB.
 * And all programs are one process for the kernel outside, which ends the sandbox when its control group is full. So an
 * agent looks at how much is free while it has commands, and lets them fork no more (EAGAIN) before that happens.
 * Few processes are left alone: what they use is their own. */
#include "agent.h"
#include "process.h"

enum {
    FEW = 32,
    REFUSED = 1, /* the soft limit of processes which says that it was set here */
};
static const uint64_t FIRST = 250000000u, SOONEST = 50000000u, LATEST = 1000000000u;
static const uint64_t OF_ONE = 128u << 10; /* the sentry's own memory for each process, above the room that it has */
static const uint64_t SHARE = 16;          /* of all memory: so much is kept free */

struct look {
    const struct agent *agent;
    uint64_t count;
    bool refuse;
};

/* Bytes that a line of /proc/meminfo tells. */
static bool told(const char *text, size_t size, const char *key, uint64_t *bytes)
{
    const char *line = find_bytes(text, size, key, strlen(key));
    size_t at = strlen(key);
    size_t length = line ? process_word(line, size - (size_t)(line - text), &at) : 0;
    if (!length || parse_decimal(line + at, length, bytes))
        return false;
    *bytes <<= 10;
    return true;
}

/* Of a command: no other process has a tag. */
static bool counted(void *context, int pid)
{
    struct look *look = context;
    struct rlimit tag;
    look->count += !sys_prlimit(pid, RLIMIT_RSS, NULL, &tag) && tag.hard <= look->agent->top_tag;
    return true;
}

static bool limited(void *context, int pid)
{
    const struct look *look = context;
    struct rlimit tag, limit;
    if (sys_prlimit(pid, RLIMIT_RSS, NULL, &tag) || tag.hard > look->agent->top_tag)
        return true;
    if (sys_prlimit(pid, RLIMIT_NPROC, NULL, &limit) || (limit.soft == REFUSED) == look->refuse)
        return true;
    limit.soft = look->refuse ? REFUSED : limit.hard;
    (void)sys_prlimit(pid, RLIMIT_NPROC, &limit, NULL);
    return true;
}

/* When to look again, in nanoseconds from now: memory is filled with less than a gigabyte a second. */
static uint64_t look(struct agent *agent)
{
    char text[4096];
    uint64_t total, left;
    long got = process_read("/proc/meminfo", text, sizeof text);
    if (got <= 0 || !told(text, (size_t)got, "MemTotal:", &total) || !told(text, (size_t)got, "MemAvailable:", &left))
        return LATEST;
    if (!agent->refuses && left > total / 2)
        return LATEST;
    struct look at = {agent, 0, false};
    process_each(counted, &at);
    uint64_t kept = total / SHARE + at.count * OF_ONE;
    at.refuse = at.count >= FEW && left < (agent->refuses ? kept + total / SHARE : kept);
    if (at.refuse || agent->refuses)
        process_each(limited, &at);
    agent->refuses = at.refuse;
    return at.refuse ? FIRST : min_u64(LATEST, SOONEST + (left > kept ? left - kept : 0));
}

static void fire(struct timer *timer)
{
    struct agent *agent = CONTAINER_OF(timer, struct agent, pressure);
    bool runs = false;
    for (size_t i = 0; i < LIMIT_COMMANDS; i++)
        runs |= agent->commands[i].state == CHILD_RUNNING;
    if (runs)
        timer_set(&agent->loop, timer, loop_now() + look(agent));
}

void pressure_watch(struct agent *agent)
{
    if (!agent->thrifty || agent->pressure.set)
        return;
    agent->pressure.fire = fire;
    timer_set(&agent->loop, &agent->pressure, loop_now() + FIRST);
}
