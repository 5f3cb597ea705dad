/* Answers requests about patterns, so that Python can compare the answers with its own.
 *
 * A request is a letter and two texts, each with its length before it (u32); an answer is one text with its length. */
#include "patterns.h"
#include "schema.h"
#include "sys.h"

enum { LARGEST = 1 << 22 };

static bool read_all(void *to, size_t size)
{
    unsigned char *at = to;

    while (size) {
        long got = sys_read(0, at, size);

        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

static void answer(const void *text, uint32_t size)
{
    (void)sys_write(1, &size, sizeof size);
    (void)sys_write(1, text, size);
}

/* In a block of exactly its size, so that a read beyond it is seen. */
static struct reader text(void)
{
    uint32_t size;
    unsigned char *block;

    if (!read_all(&size, sizeof size) || size > LARGEST)
        sys_exit(2);
    block = __builtin_malloc(size + !size);
    if (!block || !read_all(block, size))
        sys_exit(2);
    return reader_of(block, size);
}

static void forget(struct reader block)
{
    __builtin_free((void *)(uintptr_t)block.at);
}

/* The program is the body of a GREP. */
static void search(struct reader program, struct reader in)
{
    struct regex *regex = __builtin_malloc(sizeof *regex);
    struct regex_run *run = __builtin_calloc(1, sizeof *run);
    struct grep_message grep;

    if (message_read(program, &grep_shape, &grep) || regex_load(regex, grep.steps, grep.ranges, grep.literal, grep.begins))
        answer("refused", 7);
    else
        answer(regex_search(regex, run, in.at, in.left) ? "+" : "-", 1);
    __builtin_free(regex);
    __builtin_free(run);
}

int main(void)
{
    char kind;

    while (read_all(&kind, 1)) {
        struct reader first = text(), second = text();

        if (kind == 'g')
            answer(glob_match(first.at, first.left, second.at, second.left) ? "+" : "-", 1);
        else if (kind == 'r')
            search(first, second);
        forget(first);
        forget(second);
    }
    return 0;
}
