/* GREP. */
#include "patterns.h"
#include "rows.h"
#include "sys.h"

enum {
    GREP_LINE = 64 << 10,  /* a longer line is searched in pieces */
    GREP_TOLD = 8000,      /* bytes of a line in an answer */
    GREP_PROBE = 8 << 10,  /* bytes in which a NUL makes a file a binary one */
    GREP_BLOCK = 256 << 10,
};

struct grep {
    struct regex regex;
    struct regex_run run;
    struct rows *rows;
    const char *path;
    unsigned char block[GREP_BLOCK];
};

static int grep_tell(struct grep *grep, uint64_t number, const unsigned char *line, size_t size)
{
    struct match_message message = {.line_number = number, .path = text_of(grep->path)};
    size_t told = min_size(size, GREP_TOLD);
    while (told < size && told > GREP_TOLD - 4 && (line[told] & 0xc0) == 0x80)
        told--; /* not in the middle of a character */
    message.line = reader_of(line, told);
    return rows_add(grep->rows, &match_shape, &message);
}

/* How many of the bytes at `at` are a piece to search. A piece is a line with its end, or a part of a long line. 0: it
 * needs more bytes first. */
static size_t grep_piece(const unsigned char *at, size_t left, bool last)
{
    const unsigned char *end = memchr(at, '\n', min_size(left, GREP_LINE));
    if (end)
        return (size_t)(end + 1 - at);
    if (left >= GREP_LINE)
        return GREP_LINE;
    return last ? left : 0;
}

/* Lines of the block from `*at` on, of which no more can come if it is the `last`. 1; 0: no more rows; or -errno. */
static int grep_block(struct grep *grep, size_t *at, size_t size, bool last, uint64_t *number)
{
    size_t piece;
    while (*at < size && (piece = grep_piece(grep->block + *at, size - *at, last))) {
        const unsigned char *line = grep->block + *at;
        bool ends = line[piece - 1] == '\n';
        size_t length = piece;
        while (ends && length && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            length--;
        *at += piece;
        if (regex_search(&grep->regex, &grep->run, line, length)) {
            int added = grep_tell(grep, *number, line, length);
            if (added <= 0)
                return added;
        }
        *number += ends;
    }
    return 1;
}

static uint64_t grep_count(const unsigned char *at, size_t size)
{
    uint64_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += at[i] == '\n';
    return count;
}

/* The start of the last line of the block that isn't whole. */
static size_t grep_whole(const unsigned char *block, size_t size)
{
    while (size && block[size - 1] != '\n')
        size--;
    return size;
}

static int grep_fd(struct grep *grep, int fd)
{
    struct reader literal = grep->regex.literal;
    size_t filled = 0;
    uint64_t number = 1;
    bool first = true;
    for (;;) {
        long got = sys_read(fd, grep->block + filled, sizeof grep->block - filled);
        if (got < 0)
            return 1; /* one that cannot be read is passed over */
        filled += (size_t)got;
        if (first && filled && memchr(grep->block, 0, min_size(filled, GREP_PROBE)))
            return 1;
        first = false;
        size_t at = 0, whole = grep_whole(grep->block, filled);
        if (!find_bytes(grep->block, whole, literal.at, literal.left)) { /* nothing in it can match */
            number += grep_count(grep->block, whole);
            at = whole;
        }
        int more = grep_block(grep, &at, filled, !got, &number);
        if (more <= 0 || !got)
            return more;
        memmove(grep->block, grep->block + at, filled - at);
        filled -= at;
    }
}

static int grep_file(struct grep *grep, int directory, const char *name, int flags)
{
    struct statx is;
    HELD int fd = sys_openat(directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags, 0);
    bool regular = fd >= 0 && !sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is) && is_regular(&is);
    return regular ? grep_fd(grep, fd) : 1;
}

static int grep_entry(struct rows *rows, const struct walk_entry *entry, const char *path, void *context)
{
    struct grep *grep = context;
    grep->path = path;
    return is_regular(&entry->is) ? grep_file(grep, entry->parent, entry->name, O_NOFOLLOW) : 1;
}

int serve_grep(struct op *op)
{
    const struct grep_message *request = op->request;
    struct statx is;
    char *path;
    TRY(path_of(op, request->path, &path));
    op->step = "open";
    TRY(sys_statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &is));
    struct grep *grep = arena_take(&op->arena, sizeof *grep);
    if (!grep || !(grep->rows = rows_new(op, request->limit)))
        return -ENOMEM;
    TRY(regex_load(&grep->regex, request->steps, request->ranges, request->literal, request->begins));
    char *whole = arena_text(&op->arena, path, strlen(path));
    const char *name = path;
    for (const char *at = path; *at; at++)
        name = *at == '/' ? at + 1 : name;
    if (!whole)
        return -ENOMEM;
    (void)path_tidy(whole);
    grep->path = whole;
    if (is_directory(&is)) {
        int root = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0));
        TRY(rows_walk(grep->rows, root, whole, SIZE_MAX, request->name, grep_entry, grep));
    } else if (glob_match(request->name.at, request->name.left, (const unsigned char *)name, strlen(name))) {
        TRY(grep_file(grep, AT_FDCWD, path, 0));
    }
    return rows_exit(grep->rows);
}
