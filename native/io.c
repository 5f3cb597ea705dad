#include "io.h"

#include "sys.h"

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

long read_file(const char *path, void *to, size_t size)
{
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long got = fd < 0 ? fd : sys_read(fd, to, size);
    fd_close(&fd);
    return got;
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
