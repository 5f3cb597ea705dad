#include "process.h"
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

bool process_number(const char *text, size_t size, const char *key, uint64_t *number)
{
    const char *line = find_bytes(text, size, key, strlen(key));
    if (!line)
        return false;
    size_t at = strlen(key), length = process_word(line, size - (size_t)(line - text), &at);
    return !parse_decimal(line + at, length, number);
}

/* State and parent. The name stands in parentheses and may hold any byte: what follows the last one counts. */
int process_stat(struct process *process, int thread)
{
    char path[PROCESS_PATH], pid[DECIMAL_SIZE], number[DECIMAL_SIZE], line[1024] = "";
    uint64_t parent;
    process_path(path, process->pid, "/stat");
    if (thread)
        (void)JOIN(path, sizeof path, "/proc/", decimal(pid, (uint64_t)process->pid), "/task/", decimal(number, (uint64_t)thread), "/stat");
    long got = TRY(read_file(AT_FDCWD, path, line, sizeof line));
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

int numbers_open(struct numbers *numbers, const char *path)
{
    int fd = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    numbers->listing = (struct listing){.fd = fd, .buffer = numbers->buffer, .size = sizeof numbers->buffer};
    return 0;
}

int numbers_next(struct numbers *numbers, int *number)
{
    const struct directory_entry *entry;
    uint64_t value;
    while (TRY(listing_next(&numbers->listing, &entry)))
        if (!parse_decimal(entry->name, strlen(entry->name), &value)) {
            *number = (int)value;
            return 1;
        }
    return 0;
}

void numbers_close(struct numbers *numbers)
{
    fd_close(&numbers->listing.fd);
}

int process_list(struct process *to)
{
    struct numbers pids;
    int pid, more, count = 0, self = sys_getpid();
    TRY(numbers_open(&pids, "/proc"));
    while ((more = numbers_next(&pids, &pid)) > 0 && count < MOST_PROCESSES)
        if (pid != self)
            to[count++] = (struct process){.pid = pid};
    numbers_close(&pids);
    return more < 0 ? more : count;
}

/* Whether what failed is that a process or thread has ended meanwhile. */
static bool is_gone(int error)
{
    return error == -ENOENT || error == -ESRCH;
}

bool process_stands(struct process *process)
{
    char path[PROCESS_PATH];
    struct numbers threads;
    bool stands = true, blocked = false;
    int thread, more;
    process_path(path, process->pid, "/task");
    more = numbers_open(&threads, path);
    if (more)
        return is_gone(more);
    while ((more = numbers_next(&threads, &thread)) > 0) {
        int error = process_stat(process, thread);
        if (error ? !is_gone(error) : !process->dead && !process->stopped) {
            stands = false;
            blocked |= process->blocked;
        }
    }
    numbers_close(&threads);
    process->blocked = blocked;
    return stands && (!more || is_gone(more));
}
