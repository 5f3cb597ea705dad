/* The parts of a C library that the guest needs: types, memory, strings, the bottom of the system calls.
 *
 * The sanitizer and fuzz builds link glibc, which then provides mem* and str* (so that ASan sees them) and `main`;
 * nothing else differs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
int memcmp(const void *a, const void *b, size_t size);
void *memchr(const void *in, int byte, size_t size);
size_t strlen(const char *text);
int strcmp(const char *a, const char *b);

/* The first `needle` in `hay`; NULL if there is none. An empty needle is found at once. */
const void *find_bytes(const void *hay, size_t hay_size, const void *needle, size_t needle_size);

/* Decimal digits and a NUL into `to`; returns `to`. 20 digits are the most that a uint64_t has. */
#define DECIMAL_SIZE 21
char *decimal(char to[DECIMAL_SIZE], uint64_t number);

/* The same with a minus before it, if it is below zero. */
char *decimal_signed(char to[DECIMAL_SIZE + 1], int64_t number);

/* All texts, in `size` bytes at most with the NUL, which is there in any case. Returns `to`. */
#define JOIN(to, size, ...) join_texts(to, size, (const char *const[]){__VA_ARGS__, NULL})
char *join_texts(char *to, size_t size, const char *const *texts);

/* Exact: digits only, the whole of it, no overflow. 0 or -EINVAL. */
int parse_decimal(const char *text, size_t size, uint64_t *number);

/* A broken invariant of ours ends the process with this code. No byte of a peer may reach one. */
#ifdef GUEST_COVERAGE /* a branch that nothing takes is none to be covered */
#define must(condition) ((void)(condition))
#else
#define must(condition) \
    do { \
        if (!(condition)) \
            broken(__LINE__); \
    } while (0)
#endif
_Noreturn void broken(int line);

/* The value of an expression, or, if that is -errno, the end of the function with it. Not where something is to be closed
 * or taken back first. */
#define TRY(expression) \
    ({ \
        __auto_type tried = (expression); \
        if (tried < 0) \
            return (int)tried; \
        tried; \
    })

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define CONTAINER_OF(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
