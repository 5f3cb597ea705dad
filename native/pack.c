/* DOWNLOAD: what is below a directory, or one file, as an archive. Links as links; sockets, FIFOs and devices are left
 * out, and so is what the user may not read. */
#include "file.h"
#include "ops.h"
#include "path.h"
#include "sys.h"
#include "tar.h"
#include "walk.h"

enum {
    PACK_BUFFER = 64 << 10,
    PACK_LINKS = 1 << 16,     /* files with more names than one that are known again: three quarters of so many */
    PACK_NAMES = 8 << 20,     /* bytes for the names of their first; without room, such a file is packed once more */
};

struct pack_link {
    uint64_t inode;
    uint32_t major, minor;
    const char *path; /* NULL: free */
};

struct pack {
    struct op *op;
    struct walk walk;
    struct arena names;
    struct pack_link *links;
    size_t link_count;
    int follow; /* O_NOFOLLOW, but for what the request names */
    char path[TAR_PATH], target[PATH_MAX];
    size_t waiting;
    unsigned char buffer[PACK_BUFFER];
};

static int pack_flush(struct pack *pack)
{
    size_t size = pack->waiting;
    pack->waiting = 0;
    return size ? op_write(pack->op, pack->buffer, size) : 0;
}

static int pack_write(void *context, const void *bytes, size_t size)
{
    struct pack *pack = context;
    const unsigned char *from = bytes;
    while (size) {
        size_t part = min_size(size, sizeof pack->buffer - pack->waiting);
        memcpy(pack->buffer + pack->waiting, from, part);
        pack->waiting += part;
        from += part;
        size -= part;
        int error = pack->waiting == sizeof pack->buffer ? pack_flush(pack) : 0;
        if (error)
            return error;
    }
    return 0;
}

/* A file may shrink while it is read: the archive has promised its size, and zeros stand for what is missing. */
static int pack_content(struct pack *pack, int fd, uint64_t left)
{
    while (left) {
        if (pack->waiting == sizeof pack->buffer) {
            int error = pack_flush(pack);
            if (error)
                return error;
        }
        size_t room = (size_t)min_u64(left, sizeof pack->buffer - pack->waiting);
        long got = sys_read(fd, pack->buffer + pack->waiting, room);
        if (got <= 0) {
            memset(pack->buffer + pack->waiting, 0, room);
            got = (long)room;
        }
        pack->waiting += (size_t)got;
        left -= (uint64_t)got;
    }
    return 0;
}

/* The name under which the file was packed before; NULL, and it is remembered, if it was not. */
static const char *pack_known(struct pack *pack, const struct statx *is, const char *path)
{
    size_t at = (size_t)(is->inode * 0x9e3779b97f4a7c15u >> 32);
    if (is->links < 2)
        return NULL;
    for (;; at++) {
        struct pack_link *link = &pack->links[at % PACK_LINKS];
        if (!link->path) {
            const char *name = pack->link_count < PACK_LINKS / 4 * 3 ? arena_text(&pack->names, path, strlen(path)) : NULL;
            if (name) {
                pack->link_count++;
                *link = (struct pack_link){is->inode, is->device_major, is->device_minor, name};
            }
            return NULL;
        }
        if (link->inode == is->inode && link->major == is->device_major && link->minor == is->device_minor)
            return link->path;
    }
}

static int pack_file(struct pack *pack, int directory, const char *name, struct tar_member *member)
{
    struct statx is;
    int fd = sys_openat(directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | pack->follow, 0);
    int error = fd < 0 ? fd : sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is);
    if (error || (is.mode & S_IFMT) != S_IFREG) {
        fd_close(&fd);
        return 0;
    }
    const char *known = pack_known(pack, &is, member->path);
    if (known) {
        member->type = TAR_HARD_LINK;
        member->target = known;
    }
    member->size = is.size;
    error = tar_put(pack_write, pack, member, is.uid, is.gid);
    if (!error && !known)
        error = pack_content(pack, fd, is.size);
    if (!error && !known)
        error = tar_pad(pack_write, pack, is.size);
    fd_close(&fd);
    return error;
}

static int pack_link(struct pack *pack, int directory, const char *name, const struct statx *is, struct tar_member *member)
{
    long size = sys_readlinkat(directory, name, pack->target, sizeof pack->target - 1);
    if (size <= 0)
        return 0;
    pack->target[size] = 0;
    member->type = TAR_LINK;
    member->target = pack->target;
    return tar_put(pack_write, pack, member, is->uid, is->gid);
}

/* `path` has room for a slash behind it. */
static int pack_entry(struct pack *pack, int directory, const char *name, char *path, const struct statx *is)
{
    struct tar_member member = {.type = TAR_FILE, .mode = is->mode & 07777u, .modified = is->modified.seconds, .path = path};
    size_t size = strlen(path);
    switch (is->mode & S_IFMT) {
    case S_IFREG:
        return pack_file(pack, directory, name, &member);
    case S_IFLNK:
        return pack_link(pack, directory, name, is, &member);
    case S_IFDIR:
        member.type = TAR_DIRECTORY;
        path[size] = '/';
        path[size + 1] = 0;
        return tar_put(pack_write, pack, &member, is->uid, is->gid);
    default:
        return 0;
    }
}

static int pack_below(struct pack *pack, int root)
{
    struct walk_entry entry;
    int event, error = walk_open_take(&pack->walk, &root, &pack->op->arena, SIZE_MAX, TAR_PATH - 2, false);
    if (error)
        return error;
    while ((event = walk_next(&pack->walk, &entry)) > 0) {
        if (event != WALK_ENTRY)
            continue;
        memcpy(pack->path, entry.path, strlen(entry.path) + 1);
        error = pack_entry(pack, entry.parent, entry.name, pack->path, &entry.is);
        if (error)
            return error;
    }
    return event;
}

static int pack_finish(struct pack *pack)
{
    unsigned char bytes[16];
    struct writer body = writer_of(bytes, sizeof bytes);
    struct walked_message message = {.flags = pack->walk.truncated ? WALKED_TRUNCATED : 0};
    int error = tar_finish(pack_write, pack);
    if (!error)
        error = pack_flush(pack);
    if (!error)
        error = message_put(&body, &walked_shape, &message);
    return error ? error : op_exit(pack->op, &body);
}

int serve_download(struct op *op)
{
    struct download_message request;
    struct pack *pack = arena_take(&op->arena, sizeof *pack);
    struct arena links;
    struct statx is;
    const char *name;
    char *path;
    int directory = -1, error = message_read(op->request, &download_shape, &request);
    if (!error)
        error = pack ? path_of(op, request.path, &path) : -ENOMEM;
    if (!error)
        error = arena_split(&op->arena, PACK_LINKS * sizeof *pack->links, &links);
    if (!error)
        error = arena_split(&op->arena, PACK_NAMES, &pack->names);
    if (error)
        return error;
    pack->op = op;
    pack->follow = O_NOFOLLOW;
    pack->links = (struct pack_link *)(void *)links.base; /* zeros: nobody has touched it */
    op->step = "open";
    error = sys_statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &is);
    if (error)
        return error;
    if ((is.mode & S_IFMT) == S_IFDIR) {
        int root = sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        error = root < 0 ? root : op_reply(op, NULL);
        op->step = "pack";
        if (!error)
            error = pack_below(pack, root);
    } else {
        path_split(path, &name);
        directory = sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
        error = directory < 0 ? directory : op_reply(op, NULL);
        memcpy(pack->path, name, strlen(name) + 1);
        pack->follow = 0;
        op->step = "pack";
        if (!error)
            error = pack_entry(pack, directory, name, pack->path, &is);
    }
    return error ? error : pack_finish(pack);
}
