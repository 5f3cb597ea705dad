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
    HELD int fd = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0));
    return sys_read(fd, to, size);
}

int write_file(int directory, const char *path, const char *text)
{
    HELD int fd = TRY(sys_openat(directory, path, O_WRONLY | O_CLOEXEC, 0));
    TRY(sys_write(fd, text, strlen(text)));
    return 0;
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
