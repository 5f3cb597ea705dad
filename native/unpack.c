/* UPLOAD: it extracts an archive below a directory, as the user. Its names are an attacker's: none leads outside. It
 * creates and opens no file through a symbolic link, neither one of the archive nor an older one. It drops owners,
 * set-id bits and devices.
 *
 * With EXACT the archive is one of DOWNLOAD's with WHOLE or an engine's, and the directory becomes equal to it. That
 * includes modes, times and users' attributes, and for root the owners, or else `owner`. It only reads files that are
 * equal already, and deletes ones that the archive lacks. Mounts below the directory and left out paths don't change.
 * No other program writes there meanwhile. */
#include "op.h"
#include "sys.h"
#include "tar.h"
#include "walk.h"

enum {
    UNPACK_BUFFER = 256 << 10,
    UNPACK_TIMES = 16 << 20,   /* bytes for times of directories */
    UNPACK_WORLD = 0755,
    UNPACK_SEEN = 1 << 21,     /* names of an exact archive: three quarters of so many */
    UNPACK_UNPRIVILEGED = 01777,
};
static const char UNPACK_SCRATCH[] = ".paddock-carried";

struct unpack_time {
    struct unpack_time *before;
    struct timespec modified;
    unsigned mode; /* with EXACT */
    char path[];
};

struct unpack {
    struct op *op;
    struct tar_reader tar;
    struct trail trail;
    struct arena times;
    struct unpack_time *last;
    struct files made; /* that a hard link may lead to */
    bool exact, root;
    uint64_t mount;         /* of the directory */
    uint32_t owner[2];      /* of all, if `owned` */
    bool owned;
    struct reader left_out; /* relative to it */
    uint64_t *seen;         /* digests of names; 0: free */
    size_t seen_count;
    unsigned char buffer[UNPACK_BUFFER], other[UNPACK_BUFFER];
};

static int unpack_read(void *context, void *to, size_t size)
{
    return op_read(context, to, size);
}

static int unpack_refuse(struct unpack *unpack, const char *problem)
{
    unpack->op->step = problem;
    return -EILSEQ;
}

/* Names */

/* False: it leads outside. */
static bool unpack_tidy(char *path)
{
    return *path != '/' && path_tidy(path);
}

/* Whether it is `above` or something in it. */
static bool is_below(const char *path, const char *above)
{
    size_t size = strlen(above);
    return !memcmp(path, above, min_size(size, strlen(path) + 1)) && (!path[size] || path[size] == '/');
}

static int unpack_up_to(struct trail *trail, size_t depth)
{
    while (trail->depth > depth)
        TRY(trail_up(trail));
    return 0;
}

/* Moves to the directory above the last part of `path`, and returns that part in `*name`. `make`: creates missing
 * parents. */
static int unpack_enter(struct unpack *unpack, const char *path, bool make, char name[NAME_MAX + 1])
{
    struct trail *trail = &unpack->trail;
    size_t depth = 0, size = part_size(path);
    int error = 0;
    /* As far as it is the way that the trail has taken already. */
    while (path[size] && depth < trail->depth && is_part(path, size, trail_name(trail, depth + 1))) {
        path += size + 1;
        size = part_size(path);
        depth++;
    }
    error = unpack_up_to(trail, depth);
    for (; !error && size <= NAME_MAX; path += size + 1, size = part_size(path)) {
        memcpy(name, path, size);
        name[size] = 0;
        if (!path[size])
            return 0;
        error = trail_down(trail, name);
        if (error == -ENOENT && make) {
            error = sys_mkdirat(trail_fd(trail), name, UNPACK_WORLD);
            if (!error)
                error = trail_down(trail, name);
        }
    }
    return error ? error : -ENAMETOOLONG;
}

/* Removes a file at the place of a new one, but no directory with content. */
static int unpack_make_room(int directory, const char *name)
{
    int error = remove_one(directory, name);
    return error == -ENOENT ? 0 : error;
}

/* Directories */

/* An engine's image has whole seconds: these keep the times of equal files. */
static bool unpack_is_its_time(const struct timespec *time, const struct statx *is)
{
    if (is->modified.seconds != time->seconds)
        return false;
    return !time->nanoseconds || !is->modified.nanoseconds || is->modified.nanoseconds == time->nanoseconds;
}

/* Sets times after all files, or when the table is full: a new file changes its directory's time. The same for modes,
 * which exclude all but root. */
static int unpack_set_times(struct unpack *unpack)
{
    char name[NAME_MAX + 1];
    for (struct unpack_time *time = unpack->last; time; time = time->before) {
        const struct timespec times[2] = {time->modified, time->modified};
        int error = unpack_enter(unpack, time->path, false, name);
        if (error == -ESTALE || error == -EMFILE || error == -ENFILE)
            return error;
        struct statx is;
        int fd = error ? error : open_directory(trail_fd(&unpack->trail), *name ? name : ".");
        bool there = fd >= 0 && !sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is); /* else it has been replaced */
        error = there && unpack->exact && (is.mode & 07777u) != time->mode ? sys_fchmod(fd, time->mode) : 0;
        if (there && !(unpack->exact && unpack_is_its_time(&time->modified, &is)))
            (void)sys_utimensat(fd, NULL, times, 0);
        fd_close(&fd);
        if (error)
            return error;
    }
    unpack->last = NULL;
    arena_rewind(&unpack->times, 0);
    return 0;
}

static int unpack_remember_time(struct unpack *unpack, const char *path, struct timespec modified, unsigned mode)
{
    size_t size = strlen(path) + 1;
    struct unpack_time *time = arena_take(&unpack->times, sizeof *time + size);
    if (!time) {
        TRY(unpack_set_times(unpack));
        if (!(time = arena_take(&unpack->times, sizeof *time + size)))
            return -ENOMEM;
    }
    memcpy(time->path, path, size);
    time->modified = modified;
    time->mode = mode;
    time->before = unpack->last;
    unpack->last = time;
    return 0;
}

static int unpack_directory(struct unpack *unpack, const struct tar_member *member, const char *path)
{
    char name[NAME_MAX + 1];
    TRY(unpack_enter(unpack, path, true, name));
    int made = sys_mkdirat(trail_fd(&unpack->trail), name, UNPACK_WORLD);
    TRY(made == -EEXIST ? 0 : made);
    HELD int fd = TRY(open_directory(trail_fd(&unpack->trail), name));
    TRY(sys_fchmod(fd, (member->mode & UNPACK_WORLD) | 0700));
    return unpack_remember_time(unpack, path, (struct timespec){member->modified, 0}, 0);
}

/* Files */

static int unpack_content(struct unpack *unpack, int fd)
{
    int got;
    while ((got = tar_data(&unpack->tar, unpack->buffer, sizeof unpack->buffer)) > 0)
        TRY(write_all(fd, unpack->buffer, (size_t)got));
    return got;
}

static int unpack_file(struct unpack *unpack, const struct tar_member *member, int directory, const char *name)
{
    const struct timespec times[2] = {{member->modified, 0}, {member->modified, 0}};
    unsigned mode = (member->mode & UNPACK_WORLD) | 0600;
    struct statx is;
    HELD int fd = TRY(sys_openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    TRY(unpack_content(unpack, fd));
    TRY(sys_fchmod(fd, mode));
    TRY(sys_utimensat(fd, NULL, times, 0));
    TRY(sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &is));
    files_add(&unpack->made, &is, "");
    return 0;
}

static uint64_t digest_of(const char *path)
{
    uint64_t digest = 0xcbf29ce484222325u;
    for (; *path; path++)
        digest = (digest ^ (unsigned char)*path) * 0x100000001b3u;
    return digest ? digest : 1;
}

/* The place of its digest in the table. */
static uint64_t *exact_place(struct unpack *unpack, const char *path)
{
    uint64_t digest = digest_of(path);
    size_t at = (size_t)(digest * 0x9e3779b97f4a7c15u >> 32);
    while (unpack->seen[at % UNPACK_SEEN] && unpack->seen[at % UNPACK_SEEN] != digest)
        at++;
    return &unpack->seen[at % UNPACK_SEEN];
}

static int exact_away(struct unpack *unpack, int directory, const char *name)
{
    size_t mark = unpack->op->arena.used;
    int error = remove_tree(directory, name, &unpack->op->arena);
    arena_rewind(&unpack->op->arena, mark);
    if (error == -EBUSY) /* the kernel removes no directory on which something is mounted, so nothing below it either */
        return unpack_refuse(unpack, "something is mounted below it");
    return error == -ENOENT ? 0 : error;
}

/* Hard links: to a file that came before them */

static int unpack_hard_link(struct unpack *unpack, const struct tar_member *member, const char *path)
{
    char target[TAR_PATH], from_name[NAME_MAX + 1], name[NAME_MAX + 1], *inside = target;
    struct statx is, there;
    memcpy(target, member->target, strlen(member->target) + 1);
    if (!unpack_tidy(target) || !*target)
        return unpack_refuse(unpack, "hard link that leads outside");
    if (unpack->exact) { /* the name of the top comes first */
        inside = memchr(target, '/', strlen(target));
        if (!inside || !*exact_place(unpack, ++inside))
            return unpack_refuse(unpack, "hard link to no member");
    }
    TRY(unpack_enter(unpack, inside, false, from_name));
    HELD int from = TRY(sys_fcntl(trail_fd(&unpack->trail), F_DUPFD_CLOEXEC, 3));
    TRY(sys_statx(from, from_name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is));
    if (!is_regular(&is) || (!unpack->exact && !files_find(&unpack->made, &is)->path))
        return unpack_refuse(unpack, "hard link to no member");
    TRY(unpack_enter(unpack, path, !unpack->exact, name));
    int directory = trail_fd(&unpack->trail);
    if (!sys_statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &there) && is_same_file(&there, &is))
        return 0;
    TRY(unpack->exact ? exact_away(unpack, directory, name) : unpack_make_room(directory, name));
    return sys_linkat(from, from_name, directory, name, 0);
}

static int unpack_member(struct unpack *unpack, const struct tar_member *member)
{
    char path[TAR_PATH], name[NAME_MAX + 1];
    memcpy(path, member->path, strlen(member->path) + 1);
    if (!unpack_tidy(path))
        return unpack_refuse(unpack, "name that leads outside");
    if (!*path)
        return 0; /* the directory itself */
    if (member->type == TAR_DIRECTORY)
        return unpack_directory(unpack, member, path);
    if (member->type == TAR_HARD_LINK)
        return unpack_hard_link(unpack, member, path);
    TRY(unpack_enter(unpack, path, true, name));
    int directory = trail_fd(&unpack->trail);
    TRY(unpack_make_room(directory, name));
    if (member->type == TAR_LINK) /* wherever it leads: it is kept, and nothing is ever made through it */
        return sys_symlinkat(member->target, directory, name);
    return unpack_file(unpack, member, directory, name);
}

/* Exact */

static bool exact_leaves_out(const struct unpack *unpack, const char *path)
{
    struct reader left_out = unpack->left_out;
    while (left_out.left)
        if (is_below(path, next_string(&left_out)))
            return true;
    return false;
}

/* Additional values of the extended header. */
struct exact_more {
    bool mounted;
    struct timespec time;
};

static struct exact_more exact_read_more(const struct unpack *unpack, const struct tar_member *member)
{
    struct exact_more more = {.time = {member->modified, 0}};
    struct reader records = unpack->tar.records, key, value;
    while (tar_record_next(&records, &key, &value) > 0) {
        uint64_t number;
        if (reader_is(key, "PADDOCK.mounted"))
            more.mounted = true;
        bool time = reader_is(key, "PADDOCK.mtime_ns");
        bool negative = time && value.left && value.at[0] == '-';
        if (!time || parse_decimal((const char *)value.at + negative, value.left - negative, &number) || number > INT64_MAX)
            continue;
        more.time = timespec_of(negative ? -(int64_t)number : (int64_t)number);
    }
    return more;
}

static int exact_attributes(struct unpack *unpack, int fd)
{
    struct reader records = unpack->tar.records, key, value;
    static const char prefix[] = "SCHILY.xattr.";
    while (tar_record_next(&records, &key, &value) > 0) {
        char name[NAME_MAX + 1];
        size_t size = key.left - min_size(key.left, sizeof prefix - 1);
        if (size <= 5 || size > NAME_MAX || memcmp(key.at, prefix, sizeof prefix - 1) || memcmp(key.at + sizeof prefix - 1, "user.", 5))
            continue;
        memcpy(name, key.at + sizeof prefix - 1, size);
        name[size] = 0;
        long got = sys_fgetxattr(fd, name, unpack->other, sizeof unpack->other);
        if (got == (long)value.left && !memcmp(unpack->other, value.at, value.left))
            continue;
        TRY(sys_fsetxattr(fd, name, value.at, value.left, 0));
    }
    return 0;
}

/* Sets owner, attributes, mode and time in this order, as each may reset the next. It skips correct ones. */
static int exact_dress(struct unpack *unpack, int directory, const char *name, const struct tar_member *member,
                       const struct exact_more *more, const char *path)
{
    struct statx is;
    const struct timespec times[2] = {more->time, more->time};
    HELD int fd = -1;
    TRY(sys_statx(directory, name, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH, STATX_BASIC_STATS, &is));
    if (unpack->root && (is.uid != member->uid || is.gid != member->gid)) {
        TRY(sys_fchownat(directory, name, member->uid, member->gid, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH));
        TRY(sys_statx(directory, name, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH, STATX_BASIC_STATS, &is));
    }
    if (member->type != TAR_LINK) {
        int how = member->type == TAR_DIRECTORY ? O_DIRECTORY : member->type == TAR_FIFO ? O_NONBLOCK : 0;
        fd = TRY(*name ? sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | how, 0) : sys_fcntl(directory, F_DUPFD_CLOEXEC, 3));
        TRY(member->type == TAR_FIFO ? 0 : exact_attributes(unpack, fd));
        TRY(member->type != TAR_DIRECTORY && (is.mode & 07777u) != member->mode ? sys_fchmod(fd, member->mode) : 0);
    }
    if (member->type == TAR_DIRECTORY)
        return unpack_remember_time(unpack, path, more->time, member->mode);
    return unpack_is_its_time(&more->time, &is) ? 0 : sys_utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW);
}

/* As many bytes as `size` of what stands there, if they are the same. */
static bool exact_same(struct unpack *unpack, int fd, size_t size)
{
    size_t filled = 0;
    while (fd >= 0 && filled < size) {
        long got = sys_read(fd, unpack->other + filled, size - filled);
        if (got <= 0)
            return false;
        filled += (size_t)got;
    }
    return fd >= 0 && !memcmp(unpack->buffer, unpack->other, size);
}

static int exact_copy(struct unpack *unpack, int from, int to, uint64_t size)
{
    TRY(sys_lseek(from, 0, SEEK_SET));
    while (size) {
        long got = TRY(sys_read(from, unpack->other, (size_t)min_u64(size, sizeof unpack->other)));
        TRY(got ? write_all(to, unpack->other, (size_t)got) : -EIO);
        size -= (uint64_t)got;
    }
    return 0;
}

/* Compares on the way: an equal file stays, and takes no space. Otherwise it writes a new file beside. */
static int exact_file(struct unpack *unpack, const struct tar_member *member, int directory, const char *name)
{
    struct statx is;
    uint64_t same = 0;
    int there = sys_statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is);
    bool alike = !there && is_regular(&is) && is.size == member->size;
    HELD int old = alike ? sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0) : -1;
    int got = tar_data(&unpack->tar, unpack->buffer, sizeof unpack->buffer);
    while (got > 0 && exact_same(unpack, old, (size_t)got)) {
        same += (uint64_t)got;
        got = tar_data(&unpack->tar, unpack->buffer, sizeof unpack->buffer);
    }
    if (got < 0 || (old >= 0 && !got))
        return got;
    TRY(exact_away(unpack, directory, UNPACK_SCRATCH));
    HELD int fd = TRY(sys_openat(directory, UNPACK_SCRATCH, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    TRY(same ? exact_copy(unpack, old, fd, same) : 0);
    TRY(write_all(fd, unpack->buffer, (size_t)got));
    TRY(unpack_content(unpack, fd));
    TRY(!there && is_directory(&is) ? exact_away(unpack, directory, name) : 0);
    return sys_renameat2(directory, UNPACK_SCRATCH, directory, name, 0);
}

/* Creates a member that is neither a file nor a hard link. */
static int exact_put(struct unpack *unpack, const struct tar_member *member, int directory, const char *name)
{
    static const unsigned kinds[] = {S_IFREG, S_IFREG, S_IFLNK, S_IFDIR, S_IFIFO};
    struct statx is;
    int there = sys_statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is);
    bool alike = !there && (is.mode & S_IFMT) == kinds[member->type];
    if (alike && member->type == TAR_LINK) {
        long size = sys_readlinkat(directory, name, (char *)unpack->other, TAR_PATH);
        alike = size == (long)strlen(member->target) && !memcmp(unpack->other, member->target, (size_t)size);
    }
    if (alike)
        return member->type == TAR_DIRECTORY && !unpack->root ? sys_fchmodat(directory, name, 0700) : 0;
    TRY(exact_away(unpack, directory, name));
    if (member->type == TAR_LINK)
        return sys_symlinkat(member->target, directory, name);
    return member->type == TAR_DIRECTORY ? sys_mkdirat(directory, name, 0700) : sys_mknodat(directory, name, S_IFIFO | 0600, 0);
}

static int exact_member(struct unpack *unpack, const struct tar_member *member)
{
    char whole[TAR_PATH], name[NAME_MAX + 1];
    struct exact_more more = exact_read_more(unpack, member);
    struct statx above, is;
    memcpy(whole, member->path, strlen(member->path) + 1);
    if (!unpack_tidy(whole) || !*whole)
        return unpack_refuse(unpack, "name that leads outside");
    char *path = memchr(whole, '/', strlen(whole));
    if (!path) { /* the directory itself */
        if (member->type != TAR_DIRECTORY)
            return -ENOTDIR;
        TRY(unpack_up_to(&unpack->trail, 0));
        unpack->seen_count++;
        return exact_dress(unpack, trail_fd(&unpack->trail), "", member, &more, "");
    }
    path++;
    if (exact_leaves_out(unpack, path) || member->type == TAR_DEVICE)
        return 0;
    uint64_t *place = exact_place(unpack, path);
    if (*place && member->type != TAR_DIRECTORY) /* named twice */
        return unpack_refuse(unpack, "name that stands twice");
    if (!*place && ++unpack->seen_count > UNPACK_SEEN / 4 * 3)
        return -E2BIG;
    *place = digest_of(path);
    if (more.mounted)
        return 0;
    TRY(unpack_enter(unpack, path, false, name));
    int directory = trail_fd(&unpack->trail);
    if (!strcmp(name, UNPACK_SCRATCH))
        return unpack_refuse(unpack, "name that is not free");
    TRY(sys_statx(directory, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &above));
    bool there = !sys_statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_MNT_ID, &is);
    if (above.mount != unpack->mount || (there && is.mount != unpack->mount))
        return 0;
    if (member->type == TAR_HARD_LINK)
        return unpack_hard_link(unpack, member, path);
    TRY(member->type == TAR_FILE ? exact_file(unpack, member, directory, name) : exact_put(unpack, member, directory, name));
    return exact_dress(unpack, directory, name, member, &more, path);
}

/* Deletes the files that the archive lacks. */
static int exact_sweep(struct unpack *unpack)
{
    struct walk *walk = arena_take(&unpack->op->arena, sizeof *walk);
    struct walk_entry entry;
    if (!unpack->seen_count)
        return unpack_refuse(unpack, "empty archive");
    if (!walk)
        return -ENOMEM;
    TRY(unpack_up_to(&unpack->trail, 0));
    int root = TRY(sys_openat(trail_fd(&unpack->trail), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    TRY(walk_open(walk, root, &unpack->op->arena, SIZE_MAX, TAR_PATH - 1, true));
    for (int event; (event = TRY(walk_next(walk, &entry)));) {
        if (event != WALK_ENTRY)
            continue;
        bool other = entry.is.mount != unpack->mount || exact_leaves_out(unpack, entry.path);
        bool goes = !other && !*exact_place(unpack, entry.path);
        if (other || goes)
            walk->enter = false;
        if (goes)
            TRY(exact_away(unpack, entry.parent, entry.name));
    }
    return 0;
}

static int exact_begin(struct unpack *unpack, const struct upload_message *request)
{
    struct statx is;
    unpack->seen = arena_untouched(&unpack->op->arena, UNPACK_SEEN * sizeof *unpack->seen);
    TRY(unpack->seen ? 0 : -ENOMEM);
    if (request->owner.left && request->owner.left != sizeof unpack->owner)
        return -EBADMSG;
    TRY(sys_statx(trail_fd(&unpack->trail), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &is));
    unpack->mount = is.mount;
    unpack->left_out = request->left_out;
    unpack->root = !CALL0(getuid);
    unpack->owned = request->owner.left;
    if (unpack->owned)
        memcpy(unpack->owner, request->owner.at, sizeof unpack->owner);
    unpack->exact = unpack->tar.whole = true;
    return is.mask & STATX_MNT_ID ? 0 : -ENOSYS;
}

static int unpack_all(struct unpack *unpack)
{
    struct tar_member member;
    int result, got;
    while ((result = tar_next(&unpack->tar, &member)) > 0) {
        unpack->op->step = "unpack";
        if (unpack->owned) {
            member.uid = unpack->owner[0];
            member.gid = unpack->owner[1];
            member.mode &= UNPACK_UNPRIVILEGED;
        }
        result = unpack->exact ? exact_member(unpack, &member) : unpack_member(unpack, &member);
        if (result)
            break;
    }
    if (result == -EBADMSG && unpack->tar.problem)
        return unpack_refuse(unpack, unpack->tar.problem);
    if (result)
        return result;
    while ((got = op_read(unpack->op, unpack->buffer, sizeof unpack->buffer)) > 0)
        ; /* what pads the end of the archive */
    result = got < 0 ? got : unpack->exact ? exact_sweep(unpack) : 0;
    return result ? result : unpack_set_times(unpack);
}

int serve_upload(struct op *op)
{
    const struct upload_message *request = op->request;
    struct unpack *unpack = arena_take(&op->arena, sizeof *unpack);
    char *path;
    TRY(unpack ? path_of(op, request->path, &path) : -ENOMEM);
    op->step = "mkdir";
    TRY(path_make(AT_FDCWD, path));
    int root = TRY(sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    TRY(trail_open(&unpack->trail, root, &op->arena));
    TRY(arena_split(&op->arena, UNPACK_TIMES, &unpack->times));
    unpack->op = op;
    tar_start(&unpack->tar, unpack_read, op);
    if (request->flags & UPLOAD_EXACT) {
        TRY(exact_begin(unpack, request));
    } else {
        TRY(files_open(&unpack->made, &op->arena));
    }
    TRY(op_reply(op, NULL, NULL));
    TRY(unpack_all(unpack));
    return file_answer(op, AT_FDCWD, path, path, AT_SYMLINK_NOFOLLOW, op_exit);
}
