#include "ring.h"
#include "sys.h"

struct ring ring_of(size_t size)
{
    must(size && !(size & (size - 1)));
    return (struct ring){NULL, size, 0, 0};
}

void ring_free(struct ring *ring)
{
    if (ring->base)
        sys_unmap(ring->base, ring->size);
    ring->base = NULL;
    ring->first = ring->end;
}

static int provide(struct ring *ring)
{
    if (!ring->base)
        ring->base = sys_map(ring->size);
    return ring->base ? 0 : -ENOMEM;
}

static size_t place(const struct ring *ring, uint64_t offset)
{
    return (size_t)(offset & (ring->size - 1));
}

long ring_fill(struct ring *ring, int fd, uint64_t keep, size_t most)
{
    if (provide(ring))
        return -ENOMEM;
    must(keep <= ring->end);
    size_t room = ring->size - (size_t)min_u64(ring->end - keep, ring->size);
    size_t size = min_size(min_size(room, most), ring->size - place(ring, ring->end));
    if (!size)
        return -EAGAIN;
    long got = sys_read(fd, ring->base + place(ring, ring->end), size);
    if (got > 0) {
        ring->end += (uint64_t)got;
        if (ring->end - ring->first > ring->size)
            ring->first = ring->end - ring->size;
    }
    return got;
}

long ring_drain(struct ring *ring, int fd)
{
    size_t size = min_size((size_t)(ring->end - ring->first), ring->size - place(ring, ring->first));
    if (!size)
        return 0;
    long written = sys_write(fd, ring->base + place(ring, ring->first), size);
    if (written > 0)
        ring->first += (uint64_t)written;
    return written;
}

int ring_append(struct ring *ring, const void *bytes, size_t size)
{
    must(size <= ring->size - (size_t)(ring->end - ring->first));
    if (provide(ring))
        return -ENOMEM;
    size_t before_end = min_size(size, ring->size - place(ring, ring->end));
    memcpy(ring->base + place(ring, ring->end), bytes, before_end);
    memcpy(ring->base, (const unsigned char *)bytes + before_end, size - before_end);
    ring->end += size;
    return 0;
}

void ring_copy(const struct ring *ring, uint64_t offset, void *to, size_t size)
{
    must(offset >= ring->first && offset + size <= ring->end);
    size_t before_end = min_size(size, ring->size - place(ring, offset));
    memcpy(to, ring->base + place(ring, offset), before_end);
    memcpy((unsigned char *)to + before_end, ring->base, size - before_end);
}
