#include "kernel.h"
#include "tar.h"

/* Offsets of the fields of a header. */
enum {
    HEADER_NAME = 0, HEADER_MODE = 100, HEADER_UID = 108, HEADER_GID = 116, HEADER_SIZE = 124, HEADER_MODIFIED = 136,
    HEADER_SUM = 148, HEADER_TYPE = 156, HEADER_LINK = 157, HEADER_MAGIC = 257, HEADER_MAJOR = 329, HEADER_MINOR = 337,
    HEADER_PREFIX = 345, HEADER_END = 500,
};

/* The extended headers' values for the next member. Names are in the reader. */
struct tar_extensions {
    bool path, target, size, modified, uid, gid, pax, gnu_path, gnu_target;
    uint64_t size_value, uid_value, gid_value;
    int64_t modified_value;
};

static int tar_refuse(struct tar_reader *tar, const char *problem)
{
    tar->problem = problem;
    return -EBADMSG;
}

/* 1: all of it; 0: the stream ended before its first byte; or an error. */
static int tar_fill(struct tar_reader *tar, void *to, size_t size)
{
    size_t filled = 0;
    while (filled < size) {
        int got = tar->read(tar->context, (unsigned char *)to + filled, size - filled);
        if (got < 0)
            return got;
        if (!got)
            return filled ? tar_refuse(tar, "end in the middle") : 0;
        filled += (size_t)got;
    }
    return 1;
}

/* 0: all of it, which may be none; or an error, also if the stream ends before. */
static int tar_fill_on(struct tar_reader *tar, void *to, size_t size)
{
    int filled = size ? TRY(tar_fill(tar, to, size)) : 1;
    return filled ? 0 : tar_refuse(tar, "end in the middle");
}

static int tar_skip(struct tar_reader *tar, uint64_t size)
{
    while (size) {
        int got = tar->read(tar->context, tar->extension, (size_t)min_u64(size, sizeof tar->extension));
        if (got <= 0)
            return got ? got : tar_refuse(tar, "end in the middle");
        size -= (uint64_t)got;
    }
    return 0;
}

static uint32_t tar_padding(uint64_t size)
{
    return (uint32_t)(-size % TAR_BLOCK);
}

/* A number in octal digits, with spaces before and spaces or NULs behind; or in base 256, signed. An empty one is 0. */
static bool tar_number(const unsigned char *field, size_t size, int64_t *number)
{
    uint64_t value = 0;
    size_t at = 0;
    if (field[0] & 0x80) {
        unsigned char sign = field[0] == 0x80 ? 0 : 0xff;
        if (field[0] != 0x80 && field[0] != 0xff)
            return false;
        for (at = 1; at + 8 < size; at++)
            if (field[at] != sign)
                return false;
        value = sign ? UINT64_MAX : 0;
        for (; at < size; at++)
            value = value << 8 | field[at];
        *number = (int64_t)value;
        return (*number < 0) == (sign != 0);
    }
    while (at < size && field[at] == ' ')
        at++;
    for (; at < size && field[at] >= '0' && field[at] <= '7'; at++)
        value = value << 3 | (uint64_t)(field[at] - '0');
    for (; at < size; at++)
        if (field[at] && field[at] != ' ')
            return false;
    *number = (int64_t)value; /* of 12 octal digits at most */
    return true;
}

static bool tar_sum_holds(const unsigned char *block)
{
    uint32_t plain = 0;
    int32_t with_signs = 0;
    int64_t wanted;
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        unsigned char byte = i >= HEADER_SUM && i < HEADER_SUM + 8 ? ' ' : block[i];
        plain += byte;
        with_signs += (signed char)byte;
    }
    return !(block[HEADER_SUM] & 0x80) && tar_number(block + HEADER_SUM, 8, &wanted) &&
           (wanted == plain || wanted == with_signs);
}

/* A text of a header, which ends with a NUL or with its field. */
static size_t tar_text(const unsigned char *field, size_t size, char *to)
{
    const unsigned char *end = memchr(field, 0, size);
    size_t length = end ? (size_t)(end - field) : size;
    memcpy(to, field, length);
    to[length] = 0;
    return length;
}

/* pax */

static bool tar_begins(struct reader key, const char *wanted)
{
    return key.left >= strlen(wanted) && !memcmp(key.at, wanted, strlen(wanted));
}

static bool tar_number_value(struct reader value, uint64_t most, uint64_t *number)
{
    return !parse_decimal((const char *)value.at, value.left, number) && *number <= most;
}

static bool tar_name_value(struct reader value, char *to)
{
    if (!value.left || value.left >= TAR_PATH || memchr(value.at, 0, value.left))
        return false;
    memcpy(to, value.at, value.left);
    to[value.left] = 0;
    return true;
}

/* Seconds, perhaps with a sign and a fraction, which is dropped downwards. */
static bool tar_time_value(struct reader value, int64_t *seconds)
{
    bool negative = value.left && value.at[0] == '-';
    const unsigned char *digits = value.at + negative;
    size_t left = value.left - negative;
    const unsigned char *point = left ? memchr(digits, '.', left) : NULL;
    size_t whole = point ? (size_t)(point - digits) : left;
    uint64_t number;
    bool fraction = false;
    for (size_t i = whole + 1; i < left; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return false;
        fraction = fraction || digits[i] != '0';
    }
    if (parse_decimal((const char *)digits, whole, &number) || number >= INT64_MAX)
        return false;
    *seconds = negative ? -(int64_t)number - fraction : (int64_t)number;
    return true;
}

static int tar_pax_record(struct tar_reader *tar, struct tar_extensions *extensions, bool global, struct reader key, struct reader value)
{
    bool good, of_one = true; /* a global header has no say in what is one member's */
    if (tar_begins(key, "GNU.sparse.") || reader_is(key, "SCHILY.realsize"))
        return tar_refuse(tar, "sparse member");
    if (reader_is(key, "path"))
        good = extensions->path = tar_name_value(value, tar->path);
    else if (reader_is(key, "linkpath"))
        good = extensions->target = tar_name_value(value, tar->target);
    else if (reader_is(key, "size"))
        good = extensions->size = tar_number_value(value, INT64_MAX, &extensions->size_value);
    else if (reader_is(key, "mtime"))
        good = extensions->modified = tar_time_value(value, &extensions->modified_value);
    else if (tar->whole && reader_is(key, "uid"))
        good = extensions->uid = tar_number_value(value, UINT32_MAX - 1, &extensions->uid_value);
    else if (tar->whole && reader_is(key, "gid"))
        good = extensions->gid = tar_number_value(value, UINT32_MAX - 1, &extensions->gid_value);
    else { /* others than the character set say nothing that is taken over */
        of_one = false;
        good = !reader_is(key, "hdrcharset") || reader_is(value, "BINARY") || reader_is(value, "ISO-IR 10646 2000 UTF-8");
    }
    if (good && !(global && of_one))
        return 0;
    return tar_refuse(tar, global ? "global extension" : "extension that means nothing");
}

int tar_record_next(struct reader *records, struct reader *key, struct reader *value)
{
    const unsigned char *at = records->at;
    uint64_t length;
    if (!records->left)
        return 0;
    const unsigned char *space = memchr(at, ' ', min_size(records->left, DECIMAL_SIZE));
    if (!space || parse_decimal((const char *)at, (size_t)(space - at), &length) || length > records->left)
        return -EBADMSG;
    const unsigned char *last = at + length - 1;
    if (space + 1 >= last || *last != '\n')
        return -EBADMSG;
    const unsigned char *equals = memchr(space + 1, '=', (size_t)(last - space - 1));
    if (!equals || equals == space + 1)
        return -EBADMSG;
    *key = reader_of(space + 1, (size_t)(equals - space - 1));
    *value = reader_of(equals + 1, (size_t)(last - equals - 1));
    *records = reader_of(last + 1, records->left - (size_t)length);
    return 1;
}

static int tar_pax(struct tar_reader *tar, struct tar_extensions *extensions, size_t size, bool global)
{
    struct reader records = reader_of(tar->extension, size), key, value;
    int more;
    while ((more = tar_record_next(&records, &key, &value)) > 0)
        TRY(tar_pax_record(tar, extensions, global, key, value));
    return more ? tar_refuse(tar, "malformed extension") : 0;
}

/* GNU tar: the whole content is the name, with a NUL at its end. */
static int tar_gnu_name(struct tar_reader *tar, size_t size, char *to)
{
    const unsigned char *end = size ? memchr(tar->extension, 0, size) : NULL;
    size_t length = end ? (size_t)(end - tar->extension) : size;
    if (!tar_name_value(reader_of(tar->extension, length), to) || !all_zero(tar->extension + length, size - length))
        return tar_refuse(tar, "long name that is none");
    return 0;
}

/* An extended header, about the next member. Two of a kind, or of two families, are ambiguous. */
static int tar_extension(struct tar_reader *tar, struct tar_extensions *extensions, char type, uint64_t size)
{
    if (size > TAR_EXTENSION)
        return tar_refuse(tar, "extension that is too large");
    TRY(tar_fill_on(tar, tar->extension, (size_t)size));
    unsigned char padding[TAR_BLOCK];
    TRY(tar_fill_on(tar, padding, tar_padding(size)));
    bool pax = type == 'x' || type == 'g', *gnu = type == 'L' ? &extensions->gnu_path : &extensions->gnu_target;
    if (extensions->pax || (pax ? extensions->gnu_path || extensions->gnu_target : *gnu))
        return tar_refuse(tar, "extension before an extension");
    if (!pax) {
        *gnu = true;
        return tar_gnu_name(tar, (size_t)size, type == 'L' ? tar->path : tar->target);
    }
    extensions->pax = type == 'x';
    if (extensions->pax)
        tar->records = reader_of(tar->extension, (size_t)size);
    return tar_pax(tar, extensions, (size_t)size, type == 'g');
}

/* Names as the header itself has them. */
static int tar_header_names(struct tar_reader *tar, bool want_path, bool want_target)
{
    const unsigned char *block = tar->block;
    bool posix = !memcmp(block + HEADER_MAGIC, "ustar\0", 6);
    size_t size = 0;
    if (!posix && want_path && !all_zero(block + HEADER_PREFIX, HEADER_END - HEADER_PREFIX))
        return tar_refuse(tar, "old header with a prefix");
    if (want_path) {
        if (posix && block[HEADER_PREFIX]) {
            size = tar_text(block + HEADER_PREFIX, HEADER_END - HEADER_PREFIX, tar->path);
            tar->path[size++] = '/';
        }
        (void)tar_text(block + HEADER_NAME, 100, tar->path + size);
    }
    if (want_target)
        (void)tar_text(block + HEADER_LINK, 100, tar->target);
    return 0;
}

/* An enum tar_type, or an error. */
static int tar_type(struct tar_reader *tar, char type)
{
    size_t size = strlen(tar->path);
    bool as_directory = size && tar->path[size - 1] == '/';
    switch (type) {
    case 0: /* of old archives */
        return as_directory ? TAR_DIRECTORY : TAR_FILE;
    case '0':
    case '7':
        return as_directory ? tar_refuse(tar, "file with a directory's name") : TAR_FILE;
    case '1':
        return TAR_HARD_LINK;
    case '2':
        return TAR_LINK;
    case '5':
        return TAR_DIRECTORY;
    case '3':
    case '4':
        return tar->whole ? TAR_DEVICE : tar_refuse(tar, "device");
    case '6':
        return tar->whole ? TAR_FIFO : tar_refuse(tar, "FIFO");
    case 'S':
        return tar_refuse(tar, "sparse member");
    default:
        return tar_refuse(tar, "unknown type of member");
    }
}

static int tar_header(struct tar_reader *tar, const struct tar_extensions *extensions, int64_t size, struct tar_member *member)
{
    int64_t mode, uid, gid, passed_over;
    TRY(tar_header_names(tar, !extensions->path && !extensions->gnu_path, !extensions->target && !extensions->gnu_target));
    member->type = (enum tar_type)TRY(tar_type(tar, (char)tar->block[HEADER_TYPE]));
    if (!tar_number(tar->block + HEADER_MODE, 8, &mode) || !tar_number(tar->block + HEADER_MODIFIED, 12, &member->modified) ||
        !tar_number(tar->block + HEADER_UID, 8, &uid) || !tar_number(tar->block + HEADER_GID, 8, &gid) ||
        !tar_number(tar->block + HEADER_MAJOR, 8, &passed_over) || !tar_number(tar->block + HEADER_MINOR, 8, &passed_over))
        return tar_refuse(tar, "number that is none");
    member->mode = (unsigned)mode & 07777u;
    member->uid = (uint32_t)(extensions->uid ? extensions->uid_value : (uint64_t)uid);
    member->gid = (uint32_t)(extensions->gid ? extensions->gid_value : (uint64_t)gid);
    member->size = extensions->size ? extensions->size_value : (uint64_t)size;
    if (extensions->modified)
        member->modified = extensions->modified_value;
    if (member->type != TAR_FILE && member->size)
        return tar_refuse(tar, "content of what has none");
    member->path = tar->path;
    member->target = tar->target;
    member->more = reader_of(NULL, 0);
    if (!*member->path)
        return tar_refuse(tar, "member without a name");
    if ((member->type == TAR_LINK || member->type == TAR_HARD_LINK) && !*member->target)
        return tar_refuse(tar, "link without a target");
    tar->left = member->size;
    tar->padding = tar_padding(member->size);
    return 1;
}

void tar_start(struct tar_reader *tar, tar_source *read, void *context)
{
    tar->read = read;
    tar->context = context;
    tar->problem = NULL;
    tar->whole = false;
    tar->left = tar->padding = 0;
}

int tar_next(struct tar_reader *tar, struct tar_member *member)
{
    struct tar_extensions extensions = {0};
    TRY(tar_skip(tar, tar->left + tar->padding));
    tar->left = tar->padding = 0;
    tar->records = reader_of(NULL, 0);
    for (;;) {
        int64_t size;
        if (!TRY(tar_fill(tar, tar->block, sizeof tar->block)))
            return tar_refuse(tar, "no end");
        if (all_zero(tar->block, sizeof tar->block)) {
            bool hanging = extensions.pax || extensions.gnu_path || extensions.gnu_target;
            return hanging ? tar_refuse(tar, "extension without its member") : 0;
        }
        if (!tar_sum_holds(tar->block))
            return tar_refuse(tar, "header that is none");
        if (!tar_number(tar->block + HEADER_SIZE, 12, &size) || size < 0)
            return tar_refuse(tar, "size that is none");
        char type = (char)tar->block[HEADER_TYPE];
        if (type != 'g' && type != 'x' && type != 'L' && type != 'K')
            return tar_header(tar, &extensions, size, member);
        TRY(tar_extension(tar, &extensions, type, (uint64_t)size));
    }
}

int tar_data(struct tar_reader *tar, void *to, size_t size)
{
    if (!tar->left)
        return 0;
    int got = tar->read(tar->context, to, (size_t)min_u64(tar->left, min_size(size, INT32_MAX)));
    if (got > 0)
        tar->left -= (uint64_t)got;
    return got ? got : tar_refuse(tar, "end in the middle");
}
