#include "arena.h"
#include "sys.h"

enum { ALIGNMENT = 16 };

int arena_open(struct arena *arena, size_t size)
{
    *arena = (struct arena){sys_map(size), 0, size};
    return arena->base ? 0 : -ENOMEM;
}

void *arena_take(struct arena *arena, size_t size)
{
    size_t rounded;
    if (__builtin_add_overflow(size, (size_t)(ALIGNMENT - 1), &rounded))
        return NULL;
    rounded &= ~(size_t)(ALIGNMENT - 1);
    if (rounded > arena->size - arena->used || fault_denies())
        return NULL;
    void *taken = arena->base + arena->used;
    arena->used += rounded;
    return memset(taken, 0, size);
}

void *arena_array(struct arena *arena, size_t count, size_t size)
{
    size_t total;
    return __builtin_mul_overflow(count, size, &total) ? NULL : arena_take(arena, total);
}

char *arena_text(struct arena *arena, const void *from, size_t size)
{
    char *text = size == SIZE_MAX ? NULL : arena_take(arena, size + 1);
    if (text)
        memcpy(text, from, size); /* the NUL is there: what is taken is zeroed */
    return text;
}

void *arena_untouched(struct arena *arena, size_t size)
{
    size_t start = (arena->used + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (start > arena->size || size > arena->size - start)
        return NULL;
    arena->used = start + size;
    return arena->base + start;
}

int arena_split(struct arena *arena, size_t size, struct arena *part)
{
    *part = (struct arena){arena_untouched(arena, size), 0, size};
    return part->base ? 0 : -ENOMEM;
}

void arena_rewind(struct arena *arena, size_t mark)
{
    must(mark <= arena->used);
    arena->used = mark;
}
