#include "kernel.h"
#include "patterns.h"
#include "tar.h"

struct tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], modified[12], sum[8], type, link[100], magic[6], version[2],
        user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK, "ustar");

enum { RECORDS = 2 * TAR_PATH + 256 }; /* bytes: four at most are written, of two paths and two numbers */

/* Octal digits that fill the field, and a NUL. False: the number has more. */
static bool tar_put_number(char *field, size_t size, uint64_t number)
{
    field[size - 1] = 0;
    for (size_t i = size - 1; i--; number >>= 3)
        field[i] = (char)('0' + (number & 7));
    return !number;
}

int tar_record_put(struct writer *to, const char *key, struct reader value)
{
    char number[DECIMAL_SIZE];
    size_t rest = strlen(key) + value.left + 3, length = rest;
    while (length != rest + strlen(decimal(number, length))) /* it counts itself */
        length = rest + strlen(number);
    if (length > to->size - to->used)
        return -ENOBUFS;
    (void)put_bytes(to, number, strlen(number));
    (void)put_bytes(to, " ", 1);
    (void)put_bytes(to, key, strlen(key));
    (void)put_bytes(to, "=", 1);
    (void)put_bytes(to, value.at, value.left);
    return put_bytes(to, "\n", 1);
}

static void tar_record(struct writer *records, const char *key, const char *value)
{
    must(!tar_record_put(records, key, reader_of(value, strlen(value))));
}

static void tar_record_number(struct writer *records, const char *key, int64_t number)
{
    char text[DECIMAL_SIZE + 1];
    tar_record(records, key, decimal_signed(text, number));
}

static bool tar_is_ascii(const char *text)
{
    for (; *text; text++)
        if (*text & 0x80)
            return false;
    return true;
}

/* Into name and prefix of the header, if there is a slash at the right place. */
static bool tar_put_name(struct tar_header *header, const char *path)
{
    size_t size = strlen(path);
    if (size <= sizeof header->name) {
        memcpy(header->name, path, size);
        return true;
    }
    for (size_t at = min_size(size - 1, sizeof header->prefix); at; at--)
        if (path[at] == '/' && size - at - 1 <= sizeof header->name && size - at > 1) {
            memcpy(header->prefix, path, at);
            memcpy(header->name, path + at + 1, size - at - 1);
            return true;
        }
    memcpy(header->name, path, sizeof header->name);
    return false;
}

static int tar_put_header(tar_sink *write, void *context, struct tar_header *header)
{
    const unsigned char *bytes = (const unsigned char *)header;
    uint32_t sum = 0;
    memset(header->sum, ' ', sizeof header->sum);
    for (size_t i = 0; i < sizeof *header; i++)
        sum += bytes[i];
    (void)tar_put_number(header->sum, 7, sum);
    return write(context, header, sizeof *header);
}

static void tar_magic(struct tar_header *header, char type)
{
    header->type = type;
    memcpy(header->magic, "ustar", 6);
    memcpy(header->version, "00", 2);
    memset((char *)header + offsetof(struct tar_header, mode), '0', offsetof(struct tar_header, sum) - offsetof(struct tar_header, mode));
    memset((char *)header + offsetof(struct tar_header, major), '0', sizeof header->major + sizeof header->minor);
    header->mode[7] = header->uid[7] = header->gid[7] = header->size[11] = header->modified[11] = header->major[7] =
        header->minor[7] = 0;
}

static int tar_put_records(tar_sink *write, void *context, const struct writer *records, struct reader more)
{
    static const char name[] = "././@PaxHeader";
    struct tar_header header = {0};
    memcpy(header.name, name, sizeof name);
    tar_magic(&header, 'x');
    (void)tar_put_number(header.size, 12, records->used + more.left);
    TRY(tar_put_header(write, context, &header));
    TRY(write(context, records->base, records->used));
    if (more.left)
        TRY(write(context, more.at, more.left));
    return tar_pad(write, context, records->used + more.left);
}

static bool tar_valid(const char *text)
{
    return utf8_valid((const unsigned char *)text, strlen(text));
}

int tar_put(tar_sink *write, void *context, const struct tar_member *member, uint32_t uid, uint32_t gid)
{
    static const char types[] = {'0', '1', '2', '5', '6'};
    struct tar_header header = {0};
    unsigned char bytes[RECORDS];
    struct writer records = writer_of(bytes, sizeof bytes);
    const char *target = member->type == TAR_LINK || member->type == TAR_HARD_LINK ? member->target : "";
    uint64_t size = member->type == TAR_FILE ? member->size : 0;
    size_t target_size = strlen(target);

    if (!*member->path || strlen(member->path) >= TAR_PATH || target_size >= TAR_PATH || size > INT64_MAX)
        return -EINVAL;
    tar_magic(&header, types[member->type]);
    if (!tar_valid(member->path) || !tar_valid(target))
        tar_record(&records, "hdrcharset", "BINARY");
    if (!tar_put_name(&header, member->path) || !tar_is_ascii(member->path))
        tar_record(&records, "path", member->path);
    memcpy(header.link, target, min_size(target_size, sizeof header.link));
    if (target_size > sizeof header.link || !tar_is_ascii(target))
        tar_record(&records, "linkpath", target);
    (void)tar_put_number(header.mode, 8, member->mode & 07777u);
    if (!tar_put_number(header.uid, 8, uid))
        tar_record_number(&records, "uid", uid);
    if (!tar_put_number(header.gid, 8, gid))
        tar_record_number(&records, "gid", gid);
    if (!tar_put_number(header.size, 12, size))
        tar_record_number(&records, "size", (int64_t)size);
    if (!tar_put_number(header.modified, 12, member->modified < 0 ? 0 : (uint64_t)member->modified) || member->modified < 0)
        tar_record_number(&records, "mtime", member->modified);

    int error = records.used || member->more.left ? tar_put_records(write, context, &records, member->more) : 0;
    return error ? error : tar_put_header(write, context, &header);
}

int tar_pad(tar_sink *write, void *context, uint64_t size)
{
    static const char zeros[TAR_BLOCK];
    size_t padding = (size_t)(-size % TAR_BLOCK);
    return padding ? write(context, zeros, padding) : 0;
}

int tar_finish(tar_sink *write, void *context)
{
    static const char zeros[2 * TAR_BLOCK];
    return write(context, zeros, sizeof zeros);
}
