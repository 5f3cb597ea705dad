/* Forks are refused while memory is short behind gVisor's sentry.
 *
 * A process that is forked there costs megabytes where Linux shares pages: the sentry copies memory in units of 2 MiB.
 * And all programs are one process for the kernel outside, which ends the sandbox when its control group is full. So an
 * agent counts its commands' threads, and lets them have only so many more as there is memory for: then the sentry
 * refuses the next one (EAGAIN), however late the agent is for its next look. Few threads are left alone. */
#include "agent.h"
#include "io.h"
#include "process.h"

static const uint64_t FEW = 32, KIB = 1024;
static const uint64_t FIRST = 100000000u, SOONEST = 50000000u, LATEST = 1000000000u;
static const uint64_t OF_FORK = 10u << 20; /* of a Python that has imported much; a bare one takes a third */
static const uint64_t QUICKEST = 5000000u; /* half of the time in which such a fork is made */
static const uint64_t OF_ONE = 128u << 10; /* the sentry's own memory for each thread, above the room that it has */
static const uint64_t SHARE = 16;          /* of all memory: so much is kept free */

/* The next process of a command. No other has a tag. */
static bool next_of_command(const struct agent *agent, struct numbers *pids, int *pid)
{
    struct rlimit tag;
    while (numbers_next(pids, pid) > 0)
        if (!sys_prlimit(*pid, RLIMIT_RSS, NULL, &tag) && tag.hard <= agent->top_tag)
            return true;
    numbers_close(pids);
    return false;
}

static uint64_t count_threads(const struct agent *agent)
{
    struct process process;
    struct numbers pids;
    uint64_t threads = 0;
    if (!numbers_open(&pids, "/proc"))
        while (next_of_command(agent, &pids, &process.pid))
            threads += process_stat(&process, 0) ? 0 : process.threads;
    return threads;
}

static void limit_threads(const struct agent *agent, uint64_t most)
{
    struct numbers pids;
    struct rlimit now;
    int pid;
    if (numbers_open(&pids, "/proc"))
        return;
    while (next_of_command(agent, &pids, &pid))
        if (!sys_prlimit(pid, RLIMIT_NPROC, NULL, &now)) {
            now.soft = min_u64(now.hard, most);
            (void)sys_prlimit(pid, RLIMIT_NPROC, &now, NULL);
        }
}

/* When to look again, in nanoseconds from now. */
static uint64_t look(const struct agent *agent)
{
    char text[4096];
    uint64_t total, left;
    long got = read_file(AT_FDCWD, "/proc/meminfo", text, sizeof text);
    if (got <= 0 || !process_number(text, (size_t)got, "MemTotal:", &total) ||
        !process_number(text, (size_t)got, "MemAvailable:", &left))
        return LATEST;
    uint64_t threads = count_threads(agent), kept = total * KIB / SHARE + threads * OF_ONE;
    uint64_t more = left * KIB > kept ? (left * KIB - kept) / OF_FORK : 0;
    limit_threads(agent, threads + more < FEW ? FEW : threads + more);
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
