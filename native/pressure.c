/* Forks are refused while memory is short behind gVisor's sentry.
 *
 * A process that is forked there costs megabytes where Linux shares pages: the sentry copies memory in units of 2 MiB.
 * And all programs are one process for the kernel outside, which ends the sandbox when its control group is full. So an
 * agent counts its commands' threads, and lets them have only so many more as there is memory for: then the sentry
 * refuses the next one (EAGAIN), however late the agent is for its next look. Few threads are left alone. */
#include "agent.h"
#include "io.h"
#include "process.h"

static const uint64_t FEW = 32;
static const uint64_t FIRST = 100000000u, SOONEST = 50000000u, LATEST = 1000000000u;
static const uint64_t OF_FORK = 10u << 20; /* of a Python that has imported much; a bare one takes a third */
static const uint64_t QUICKEST = 5000000u; /* half of the time in which such a fork is made */
static const uint64_t OF_ONE = 128u << 10; /* the sentry's own memory for each thread, above the room that it has */
static const uint64_t SHARE = 16;          /* of all memory: so much is kept free */

struct look {
    const struct agent *agent;
    uint64_t threads, most;
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

/* No process that isn't a command's has a tag. */
static bool of_command(const struct look *look, int pid)
{
    struct rlimit tag;
    return !sys_prlimit(pid, RLIMIT_RSS, NULL, &tag) && tag.hard <= look->agent->top_tag;
}

static bool count(void *context, int pid)
{
    struct look *look = context;
    struct process process = {.pid = pid};
    if (of_command(look, pid) && !process_stat(&process, 0))
        look->threads += process.threads;
    return true;
}

static bool limit(void *context, int pid)
{
    const struct look *look = context;
    struct rlimit now;
    if (!of_command(look, pid) || sys_prlimit(pid, RLIMIT_NPROC, NULL, &now))
        return true;
    now.soft = min_u64(now.hard, look->most);
    (void)sys_prlimit(pid, RLIMIT_NPROC, &now, NULL);
    return true;
}

/* When to look again, in nanoseconds from now. */
static uint64_t look(const struct agent *agent)
{
    char text[4096];
    uint64_t total, left;
    long got = read_file("/proc/meminfo", text, sizeof text);
    if (got <= 0 || !told(text, (size_t)got, "MemTotal:", &total) || !told(text, (size_t)got, "MemAvailable:", &left))
        return LATEST;
    struct look at = {agent, 0, 0};
    (void)process_each(count, &at);
    uint64_t kept = total / SHARE + at.threads * OF_ONE;
    uint64_t more = left > kept ? (left - kept) / OF_FORK : 0;
    at.most = at.threads + more < FEW ? FEW : at.threads + more;
    (void)process_each(limit, &at);
    return min_u64(LATEST, SOONEST + more * QUICKEST);
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
