/* DOWNLOAD: what is below a directory, or one file, as an archive. Links as links; sockets, FIFOs and devices are left
 * out, and so is what the user may not read.
 *
 * With WHOLE it is all that another DOWNLOAD's reader needs to make the same of another directory: the names begin with
 * `top`, that of the directory itself; FIFOs, users' attributes and times in nanoseconds are there; what cannot be read is
 * an error. The archive names mounts below, so that a reader doesn't take them for removed files. */
#include "op.h"
#include "sys.h"
#include "tar.h"
#include "walk.h"

enum {
    PACK_NAMES = 8 << 20,     /* bytes for the first names of files that have several; without room, one is packed once more */
    PACK_ATTRIBUTES = 64 << 10, /* bytes of names, of one value, and of all records of one file */
};
static const char PACK_TOP[] = "top";

struct pack {
    struct op *op;
    struct walk walk;
    struct arena names;
    struct files links;
    bool whole;
    uint64_t mount;         /* of the directory */
    struct reader left_out; /* relative to it */
    struct pack_attributes {
        char names[PACK_ATTRIBUTES], value[PACK_ATTRIBUTES];
        unsigned char bytes[PACK_ATTRIBUTES];
        struct writer records;
    } *attributes;
    int follow; /* O_NOFOLLOW, but for what the request names */
    char path[TAR_PATH], target[PATH_MAX];
};

static int pack_write(void *context, const void *bytes, size_t size)
{
    const struct pack *pack = context;
    return op_write(pack->op, bytes, size);
}

/* A file may shrink while it is read: the archive has promised its size, and zeros stand for what is missing. */
static int pack_content(struct pack *pack, int fd, uint64_t left)
{
    static const unsigned char missing[TAR_BLOCK];
    while (left) {
        long got = op_fill(pack->op, fd, left);
        if (got <= 0) {
            got = (long)min_u64(left, sizeof missing);
            TRY(op_write(pack->op, missing, (size_t)got));
        }
        left -= (uint64_t)got;
    }
    return 0;
}

/* The name under which the file was packed before; NULL, and it is remembered, if it was not. */
static const char *pack_known(struct pack *pack, const struct statx *is, const char *path)
{
    const char *known = is->links < 2 ? NULL : files_find(&pack->links, is)->path;
    if (is->links > 1 && !known)
        files_add(&pack->links, is, arena_text(&pack->names, path, strlen(path)));
    return known;
}

/* Records that only WHOLE writes for a file. */

static int pack_record(struct pack *pack, const char *key, const void *value, size_t size)
{
    return tar_record_put(&pack->attributes->records, key, reader_of(value, size)) ? -E2BIG : 0;
}

static int pack_time(struct pack *pack, const struct statx *is)
{
    char text[DECIMAL_SIZE + 1];
    int64_t time;
    if (!modified_at(is, &time))
        return 0;
    (void)decimal_signed(text, time);
    return pack_record(pack, "PADDOCK.mtime_ns", text, strlen(text));
}

static int pack_users_attributes(struct pack *pack, int fd)
{
    struct pack_attributes *at = pack->attributes;
    long size = sys_flistxattr(fd, at->names, sizeof at->names);
    if (size < 0)
        return size == -EOPNOTSUPP ? 0 : (int)size;
    for (const char *name = at->names; name < at->names + size; name += strlen(name) + 1) {
        char key[16 + NAME_MAX + 1] = "SCHILY.xattr.";
        if (memcmp(name, "user.", min_size(strlen(name) + 1, 5)))
            continue;
        memcpy(key + strlen(key), name, min_size(strlen(name), NAME_MAX) + 1);
        long got = TRY(sys_fgetxattr(fd, name, at->value, sizeof at->value));
        TRY(pack_record(pack, key, at->value, (size_t)got));
    }
    return 0;
}

/* `fd` is open to be read, or -1: it can have no attributes. */
static int pack_more(struct pack *pack, int fd, const struct statx *is, struct tar_member *member)
{
    if (!pack->whole)
        return 0;
    pack->attributes->records.used = 0;
    TRY(pack_time(pack, is));
    TRY(fd < 0 ? 0 : pack_users_attributes(pack, fd));
    member->more = reader_of(pack->attributes->bytes, pack->attributes->records.used);
    return 0;
}

static int pack_mounted(struct pack *pack, const struct statx *is, struct tar_member *member)
{
    pack->walk.enter = false;
    pack->attributes->records.used = 0;
    TRY(pack_record(pack, "PADDOCK.mounted", "1", 1));
    member->more = reader_of(pack->attributes->bytes, pack->attributes->records.used);
    return tar_put(pack_write, pack, member, is->uid, is->gid);
}

static bool pack_leaves_out(struct pack *pack, const char *path)
{
    struct reader left_out = pack->left_out;
    while (left_out.left)
        if (!strcmp(next_string(&left_out), path)) {
            pack->walk.enter = false;
            return true;
        }
    return false;
}

static int pack_file(struct pack *pack, int directory, const char *name, struct tar_member *member)
{
    struct statx is;
    HELD int fd = sys_openat(directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | pack->follow, 0);
    int error = fd < 0 ? fd : sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is);
    if (error || !is_regular(&is))
        return pack->whole ? error : 0;
    const char *known = pack_known(pack, &is, member->path);
    if (known) {
        member->type = TAR_HARD_LINK;
        member->target = known;
    }
    member->size = is.size;
    TRY(pack_more(pack, fd, &is, member));
    TRY(tar_put(pack_write, pack, member, is.uid, is.gid));
    if (known)
        return 0;
    TRY(pack_content(pack, fd, is.size));
    return tar_pad(pack_write, pack, is.size);
}

static int pack_link(struct pack *pack, int directory, const char *name, const struct statx *is, struct tar_member *member)
{
    long size = sys_readlinkat(directory, name, pack->target, sizeof pack->target - 1);
    if (size <= 0)
        return 0;
    pack->target[size] = 0;
    member->type = TAR_LINK;
    member->target = pack->target;
    TRY(pack_more(pack, -1, is, member));
    return tar_put(pack_write, pack, member, is->uid, is->gid);
}

static int pack_directory(struct pack *pack, int directory, const char *name, const struct statx *is, struct tar_member *member)
{
    HELD int fd = pack->whole ? TRY(open_directory(directory, name)) : -1;
    TRY(pack_more(pack, fd, is, member));
    return tar_put(pack_write, pack, member, is->uid, is->gid);
}

/* `path` has room for a slash behind it. */
static int pack_entry(struct pack *pack, int directory, const char *name, char *path, const struct statx *is)
{
    struct tar_member member = {.type = TAR_FILE, .mode = is->mode & 07777u, .modified = is->modified.seconds, .path = path};
    size_t size = strlen(path);
    if (is_directory(is)) {
        member.type = TAR_DIRECTORY;
        path[size] = '/';
        path[size + 1] = 0;
    }
    if (pack->whole && is->mount != pack->mount)
        return pack_mounted(pack, is, &member);
    switch (is->mode & S_IFMT) {
    case S_IFREG:
        return pack_file(pack, directory, name, &member);
    case S_IFLNK:
        return pack_link(pack, directory, name, is, &member);
    case S_IFDIR:
        return pack_directory(pack, directory, name, is, &member);
    case S_IFIFO:
        member.type = TAR_FIFO;
        TRY(pack_more(pack, -1, is, &member));
        return pack->whole ? tar_put(pack_write, pack, &member, is->uid, is->gid) : 0;
    default:
        return 0;
    }
}

static int pack_below(struct pack *pack, int root, const struct statx *is)
{
    struct walk_entry entry;
    size_t top = pack->whole ? sizeof PACK_TOP : 0; /* with a slash behind it */
    int event;
    memcpy(pack->path, PACK_TOP, sizeof PACK_TOP);
    pack->mount = is->mount;
    TRY(pack->whole ? pack_entry(pack, root, ".", pack->path, is) : 0);
    TRY(walk_open(&pack->walk, root, &pack->op->arena, SIZE_MAX, TAR_PATH - 2 - top, pack->whole));
    while ((event = TRY(walk_next(&pack->walk, &entry)))) {
        if (event != WALK_ENTRY || pack_leaves_out(pack, entry.path))
            continue;
        memcpy(pack->path + top, entry.path, strlen(entry.path) + 1);
        TRY(pack_entry(pack, entry.parent, entry.name, pack->path, &entry.is));
    }
    return 0;
}

static int pack_finish(struct pack *pack)
{
    struct walked_message message = {.flags = pack->walk.truncated ? WALKED_TRUNCATED : 0};
    TRY(pack->whole && pack->walk.truncated ? -ENAMETOOLONG : tar_finish(pack_write, pack));
    return op_exit(pack->op, &walked_shape, &message);
}

int serve_download(struct op *op)
{
    const struct download_message *request = op->request;
    struct pack *pack = arena_take(&op->arena, sizeof *pack);
    struct statx is;
    const char *name;
    char *path;
    TRY(pack ? path_of(op, request->path, &path) : -ENOMEM);
    TRY(files_open(&pack->links, &op->arena));
    TRY(arena_split(&op->arena, PACK_NAMES, &pack->names));
    TRY((pack->attributes = arena_take(&op->arena, sizeof *pack->attributes)) ? 0 : -ENOMEM);
    pack->attributes->records = writer_of(pack->attributes->bytes, sizeof pack->attributes->bytes);
    pack->op = op;
    pack->follow = O_NOFOLLOW;
    pack->whole = request->flags & DOWNLOAD_WHOLE;
    pack->left_out = request->left_out;
    op->step = "open";
    TRY(sys_statx(AT_FDCWD, path, pack->whole ? AT_SYMLINK_NOFOLLOW : 0, STATX_BASIC_STATS | STATX_MNT_ID, &is));
    if (pack->whole && !is_directory(&is))
        return -ENOTDIR; /* a link: what it leads to would be carried in its place */
    if (pack->whole && !(is.mask & STATX_MNT_ID))
        return -ENOSYS;
    if (is_directory(&is)) {
        int root = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
        TRY(op_reply(op, NULL, NULL));
        op->step = "pack";
        TRY(pack_below(pack, root, &is));
    } else {
        path_split(path, &name);
        int directory = TRY(sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
        TRY(op_reply(op, NULL, NULL));
        memcpy(pack->path, name, strlen(name) + 1);
        pack->follow = 0;
        op->step = "pack";
        TRY(pack_entry(pack, directory, name, pack->path, &is));
    }
    return pack_finish(pack);
}
