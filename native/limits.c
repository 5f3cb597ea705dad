/* Which limit a failed command exceeded, by the public counters of a virtual machine's kernel. */
#include "agent.h"
#include "process.h"

enum { SLACK = 1 << 20 };
#define GROUP "/sys/fs/cgroup/sandbox/"

static const struct {
    const char *file, *key;
    uint32_t flag;
} EVENTS[2] = {{GROUP "memory.events", "\noom_kill ", ENDED_MEMORY}, {GROUP "pids.events", "\nmax ", ENDED_PROCESSES}};

void limits_open(struct agent *agent)
{
    for (size_t i = 0; i < ARRAY_SIZE(EVENTS); i++)
        agent->events[i] = agent->tells ? sys_openat(AT_FDCWD, EVENTS[i].file, O_RDONLY | O_CLOEXEC, 0) : -1;
}

/* 0 where this kernel does not tell. */
static uint64_t count_of(int fd, const char *key)
{
    char text[1024] = "\n";
    uint64_t count;
    long got = fd < 0 ? 0 : sys_pread(fd, text + 1, sizeof text - 1, 0);
    return got > 0 && process_number(text, (size_t)got + 1, key, &count) ? count : 0;
}

void limits_count(const struct agent *agent, uint64_t counts[2])
{
    for (size_t i = 0; i < ARRAY_SIZE(EVENTS); i++)
        counts[i] = count_of(agent->events[i], EVENTS[i].key);
}

static uint32_t full(void)
{
    struct statfs root;
    if (CALL2(statfs, P("/"), P(&root)))
        return 0;
    if (root.available * (uint64_t)root.fragment_size < SLACK)
        return ENDED_DISK;
    return root.free_inodes ? 0 : ENDED_INODES;
}

/* Memory first: it explains what a fork that failed only accompanied. */
uint32_t limits_hit(const struct agent *agent, const uint64_t before[2])
{
    uint64_t counts[2];
    limits_count(agent, counts);
    for (size_t i = 0; i < ARRAY_SIZE(EVENTS); i++)
        if (counts[i] > before[i])
            return EVENTS[i].flag;
    return full();
}
