#include "io.h"
#include "sys.h"

enum { NANOSECONDS = 1000000000 }; /* of a second */

int write_all(int fd, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    while (size) {
        long written = TRY(sys_write(fd, at, size));
        if (!written)
            return -EIO;
        at += written;
        size -= (size_t)written;
    }
    return 0;
}

long read_file(int directory, const char *path, void *to, size_t size)
{
    HELD int fd = TRY(sys_openat(directory, path, O_RDONLY | O_CLOEXEC, 0));
    return sys_read(fd, to, size);
}

char *text_in(char *to, size_t size, struct reader text)
{
    size_t length = min_size(text.left, size - 1);
    if (length)
        memcpy(to, text.at, length);
    to[length] = 0;
    return to;
}

int write_file(int directory, const char *path, const char *text)
{
    HELD int fd = TRY(sys_openat(directory, path, O_WRONLY | O_CLOEXEC, 0));
    TRY(sys_write(fd, text, strlen(text)));
    return 0;
}

unsigned char *queue_append(struct queue *queue, size_t size)
{
    if (queue->size - queue->end < size) {
        memmove(queue->base, queue->base + queue->first, queued(queue));
        queue->end -= queue->first;
        queue->first = 0;
    }
    if (queue->size - queue->end < size)
        return NULL;
    queue->end += size;
    return queue->base + queue->end - size;
}

int queue_write(struct queue *queue, int fd)
{
    long written = 1;
    while (written > 0 && queue->first < queue->end) {
        written = sys_write(fd, queue->base + queue->first, queued(queue));
        queue->first += written > 0 ? (size_t)written : 0;
    }
    if (queue->first == queue->end)
        queue->first = queue->end = 0;
    return written < 0 ? (int)written : 0;
}

int files_open(struct files *files, struct arena *memory)
{
    files->known = arena_untouched(memory, FILES_MOST * sizeof *files->known);
    return files->known ? 0 : -ENOMEM;
}

struct file_known *files_find(const struct files *files, const struct statx *is)
{
    size_t at = (size_t)(is->inode * 0x9e3779b97f4a7c15u >> 32) % FILES_MOST;
    while (files->known[at].path && !is_file(files->known[at].id, is))
        at = (at + 1) % FILES_MOST;
    return &files->known[at];
}

void files_add(struct files *files, const struct statx *is, const char *path)
{
    struct file_known *known = files_find(files, is);
    if (path && !known->path && files->count < FILES_MOST / 4 * 3) {
        files->count++;
        *known = (struct file_known){id_of(is), path};
    }
}

enum { MOST_FDS = 32 };

struct rights {
    struct control_header header;
    int fds[MOST_FDS];
};

long send_fds(int socket, const void *bytes, size_t size, const int *fds, size_t count)
{
    struct rights rights = {{sizeof rights.header + count * sizeof *fds, SOL_SOCKET, SCM_RIGHTS}, {0}};
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct message message = {.parts = &part, .part_count = 1, .control = &rights, .control_size = count ? rights.header.size : 0};
    must(count <= MOST_FDS);
    if (count)
        memcpy(rights.fds, fds, count * sizeof *fds);
    return CALL3(sendmsg, socket, P(&message), MSG_NOSIGNAL);
}

long receive_fds(int socket, void *to, size_t size, int flags, int *fds, size_t *count)
{
    struct rights rights = {{0}, {0}};
    struct iovec part = {to, size};
    size_t room = sizeof rights.header + min_size(*count, MOST_FDS) * sizeof *fds;
    struct message message = {.parts = &part, .part_count = 1, .control = &rights, .control_size = room};
    long got = sys_recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    *count = got >= 0 && message.control_size >= sizeof rights.header ? (rights.header.size - sizeof rights.header) / sizeof *fds : 0;
    if (got >= 0 && message.flags & MSG_CTRUNC) {
        while (*count)
            fd_close(&rights.fds[--*count]);
        return -EMSGSIZE;
    }
    if (*count)
        memcpy(fds, rights.fds, *count * sizeof *fds);
    return got;
}

bool modified_at(const struct statx *is, int64_t *nanoseconds)
{
    return !__builtin_mul_overflow(is->modified.seconds, (int64_t)NANOSECONDS, nanoseconds) &&
           !__builtin_add_overflow(*nanoseconds, (int64_t)is->modified.nanoseconds, nanoseconds);
}

struct timespec timespec_of(int64_t nanoseconds)
{
    struct timespec time = {nanoseconds / NANOSECONDS, nanoseconds % NANOSECONDS};
    if (time.nanoseconds < 0) {
        time.seconds--;
        time.nanoseconds += NANOSECONDS;
    }
    return time;
}

int listing_next(struct listing *listing, const struct directory_entry **next)
{
    for (;;) {
        if (listing->at >= listing->end) {
            listing->at = 0;
            listing->end = TRY(sys_getdents(listing->fd, listing->buffer, listing->size));
            if (!listing->end)
                return 0;
        }
        const struct directory_entry *entry = (const void *)(listing->buffer + listing->at);
        listing->at += entry->size;
        *next = entry;
        if (strcmp(entry->name, ".") && strcmp(entry->name, ".."))
            return 1;
    }
}
