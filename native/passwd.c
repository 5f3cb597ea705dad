#include "passwd.h"

#include "kernel.h"

enum { PASSWD_FIELDS = 7, GROUP_FIELDS = 4 };

/* Everything up to `end`, which is consumed as well, or up to the end of `from`. */
static struct reader upto(struct reader *from, int end)
{
    const unsigned char *found = from->left ? memchr(from->at, end, from->left) : NULL;
    size_t size = found ? (size_t)(found - from->at) : from->left;
    struct reader taken = reader_of(from->at, size);

    from->at += size + (found != NULL);
    from->left -= size + (found != NULL);
    return taken;
}

/* False: at the end of the file. */
static bool next_line(struct reader *file, struct reader *line)
{
    if (!file->left)
        return false;
    *line = upto(file, '\n');
    return true;
}

/* The fields of a line that counts; of any other, false. */
static bool split_line(struct reader line, struct reader *fields, size_t count)
{
    if (!line.left || line.left > PASSWD_LINE || memchr(line.at, 0, line.left))
        return false;
    for (size_t i = 0; i + 1 < count; i++) {
        size_t before = line.left;

        fields[i] = upto(&line, ':');
        if (fields[i].left == before) /* nothing was behind it, no colon either */
            return false;
    }
    fields[count - 1] = line;
    return (!line.left || !memchr(line.at, ':', line.left)) && fields[0].left && fields[0].left <= PASSWD_NAME;
}

/* The last two numbers mean "no change" and "overflow" to the kernel. */
static bool id_of(struct reader field, uint32_t *value)
{
    uint64_t number;

    if (parse_decimal((const char *)field.at, field.left, &number) || number > UINT32_MAX - 2)
        return false;
    *value = (uint32_t)number;
    return true;
}

static bool same_bytes(struct reader a, struct reader b)
{
    return a.left == b.left && (!a.left || !memcmp(a.at, b.at, a.left));
}

static struct reader bounded_file(struct reader file)
{
    return reader_of(file.at, min_size(file.left, PASSWD_FILE));
}

static int look_up(struct reader file, const struct reader *name, uint32_t uid, struct account *account)
{
    struct reader line, fields[PASSWD_FIELDS];

    file = bounded_file(file);
    while (next_line(&file, &line)) {
        if (!split_line(line, fields, PASSWD_FIELDS) || !id_of(fields[2], &account->uid) || !id_of(fields[3], &account->gid))
            continue;
        if (name ? same_bytes(fields[0], *name) : account->uid == uid) {
            account->name = fields[0];
            account->home = fields[5];
            account->shell = fields[6];
            return 0;
        }
    }
    return -ENOENT;
}

int passwd_by_name(struct reader file, struct reader name, struct account *account)
{
    return look_up(file, &name, 0, account);
}

int passwd_by_uid(struct reader file, uint32_t uid, struct account *account)
{
    return look_up(file, NULL, uid, account);
}

static bool lists_name(struct reader members, struct reader name)
{
    while (members.left)
        if (same_bytes(upto(&members, ','), name))
            return true;
    return false;
}

static bool id_known(const uint32_t *ids, size_t count, uint32_t wanted)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == wanted)
            return true;
    return false;
}

size_t group_ids(struct reader file, struct reader name, uint32_t primary, uint32_t *ids, size_t most)
{
    struct reader line, fields[GROUP_FIELDS];
    size_t count = 0;
    uint32_t gid;

    file = bounded_file(file);
    while (count < most && next_line(&file, &line))
        if (split_line(line, fields, GROUP_FIELDS) && id_of(fields[2], &gid) && gid != primary && lists_name(fields[3], name) &&
            !id_known(ids, count, gid))
            ids[count++] = gid;
    return count;
}
