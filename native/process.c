#include "process.h"
#include "io.h"
#include "sys.h"

void process_path(char to[PROCESS_PATH], int pid, const char *file)
{
    char number[DECIMAL_SIZE];
    (void)JOIN(to, PROCESS_PATH, "/proc/", decimal(number, (uint64_t)pid), file);
}

size_t process_word(const char *line, size_t size, size_t *at)
{
    while (*at < size && line[*at] == ' ')
        (*at)++;
    size_t end = *at;
    while (end < size && line[end] != ' ' && line[end] != '\n')
        end++;
    return end - *at;
}

/* State and parent. The name stands in parentheses and may hold any byte: what follows the last one counts. */
int process_stat(struct process *process, int thread)
{
    char path[PROCESS_PATH], pid[DECIMAL_SIZE], number[DECIMAL_SIZE], line[1024] = "";
    uint64_t parent;
    process_path(path, process->pid, "/stat");
    if (thread)
        (void)JOIN(path, sizeof path, "/proc/", decimal(pid, (uint64_t)process->pid), "/task/", decimal(number, (uint64_t)thread), "/stat");
    long got = TRY(read_file(path, line, sizeof line));
    size_t at = (size_t)got;
    while (at && line[at - 1] != ')')
        at--;
    if (!at)
        return -ESRCH;
    size_t size = process_word(line, (size_t)got, &at);
    char state = size ? line[at] : 'X';
    at += size;
    size = process_word(line, (size_t)got, &at);
    TRY(parse_decimal(line + at, size, &parent));
    for (int word = 5; word <= 20; word++) { /* num_threads is the 20th (proc(5)) */
        at += size;
        size = process_word(line, (size_t)got, &at);
    }
    TRY(parse_decimal(line + at, size, &process->threads));
    process->parent = (int)parent;
    process->dead = state == 'Z' || state == 'X';
    process->stopped = state == 'T' || state == 't';
    process->blocked = state == 'D';
    return 0;
}

/* Calls `each` with the numbers that are names in a directory. */
static int list_numbers(const char *path, bool (*each)(void *context, int number), void *context)
{
    char buffer[8192] __attribute__((aligned(8)));
    HELD int directory = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    struct listing listing = {.fd = directory, .buffer = buffer, .size = sizeof buffer};
    const struct directory_entry *entry;
    while (TRY(listing_next(&listing, &entry))) {
        uint64_t number;
        if (!parse_decimal(entry->name, strlen(entry->name), &number) && !each(context, (int)number))
            break;
    }
    return 0;
}

int process_each(bool (*each)(void *context, int pid), void *context)
{
    return list_numbers("/proc", each, context);
}

struct found {
    struct process *to;
    size_t count;
    int self;
};

static bool list_one(void *context, int pid)
{
    struct found *found = context;
    if (pid != found->self)
        found->to[found->count++] = (struct process){.pid = pid};
    return found->count < MOST_PROCESSES;
}

int process_list(struct process *to)
{
    struct found found = {to, 0, sys_getpid()};
    TRY(process_each(list_one, &found));
    return (int)found.count;
}

struct standing {
    struct process *process;
    bool stands, blocked;
};

/* Whether what failed is that a process or thread has ended meanwhile. */
static bool is_gone(int error)
{
    return error == -ENOENT || error == -ESRCH;
}

static bool look_at_thread(void *context, int thread)
{
    struct standing *standing = context;
    struct process *process = standing->process;
    int error = process_stat(process, thread);
    if (error ? !is_gone(error) : !process->dead && !process->stopped) {
        standing->stands = false;
        standing->blocked |= process->blocked;
    }
    return true;
}

bool process_stands(struct process *process)
{
    char path[PROCESS_PATH];
    struct standing standing = {process, true, false};
    process_path(path, process->pid, "/task");
    int error = list_numbers(path, look_at_thread, &standing);
    process->blocked = standing.blocked;
    return standing.stands && (!error || is_gone(error));
}
