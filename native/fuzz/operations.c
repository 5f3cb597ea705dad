/* Every file operation: which, its request, and what comes on its stream. It runs in a separate directory, which is the
 * root meanwhile, with some files in it. A second thread changes them once the operation has answered, and removes them.
 * So WATCH has something to tell. It ends as its descriptor has become one of a directory. */
#include "../op.h"
#include "../sys.h"
#include "../walk.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);
int pthread_create(unsigned long *thread, const void *attributes, void *(*run)(void *), void *argument);
int pthread_join(unsigned long thread, void **result);

enum { MOST_STREAM = 1 << 15, ABOVE = 100 };

static struct {
    struct arena arena, cleaner;
    int root, here, world, null, free, descriptors;
    int control[2];
    bool watches;
} the;

static int moved(int fd)
{
    int above = sys_fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);
    must(above >= 0);
    fd_close(&fd);
    return above;
}

static void put(const char *path, const char *text)
{
    int fd = sys_openat(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    must(fd >= 0 && !write_all(fd, text, strlen(text)));
    fd_close(&fd);
}

/* Without a user namespace only root may change its root directory. */
static void take_power(void)
{
    char map[DECIMAL_SIZE + 8] = "0 ", *end = map + 2;
    uint64_t uid = (uint64_t)CALL0(getuid);
    if (uid) {
        must(!CALL1(unshare, CLONE_NEWUSER));
        (void)decimal(end, uid);
        memcpy(end + strlen(end), " 1", 3);
        put("/proc/self/uid_map", map);
    }
}

static void set_up(void)
{
    take_power();
    must(!arena_open(&the.arena, OP_MEMORY) && !arena_open(&the.cleaner, OP_MEMORY));
    the.root = moved(sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    the.here = moved(sys_openat(AT_FDCWD, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    the.null = moved(sys_openat(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0));
    the.descriptors = moved(sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    the.free = sys_openat(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
}

static void make(const char *path, const char *text)
{
    int fd = sys_openat(the.world, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    (void)write_all(fd, text, strlen(text));
    fd_close(&fd);
}

static void begin(void)
{
    the.cleaner.used = 0;
    (void)remove_tree(the.here, "world", &the.cleaner);
    must(!sys_mkdirat(the.here, "world", 0755));
    the.world = moved(sys_openat(the.here, "world", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    must(!sys_mkdirat(the.world, "d", 0755) && !sys_mkdirat(the.world, "d/e", 0700));
    make("f", "one\ntwo\xff\n");
    make("d/g", "");
    must(!sys_linkat(the.world, "f", the.world, "d/e/h", 0) && !sys_symlinkat("../f", the.world, "d/l"));
    must(!sys_symlinkat("/", the.world, "d/r") && !sys_mknodat(the.world, "p", S_IFIFO | 0600, 0));
    must((int)CALL1(fchdir, the.world) == 0 && (int)CALL1(chroot, P(".")) == 0);
}

static void finish(void)
{
    must((int)CALL1(fchdir, the.root) == 0 && (int)CALL1(chroot, P(".")) == 0 && (int)CALL1(fchdir, the.here) == 0);
    (void)sys_close_range((unsigned)the.free, ABOVE - 1, 0);
    fd_close(&the.world);
}

static bool is_inotify(int fd)
{
    static const char kind[] = "anon_inode:inotify";
    char number[DECIMAL_SIZE], target[sizeof kind];
    long size = sys_readlinkat(the.descriptors, decimal(number, (uint64_t)fd), target, sizeof target);
    return size == sizeof kind - 1 && !memcmp(target, kind, sizeof kind - 1);
}

static void *meanwhile(void *nothing)
{
    char said[1 << 12];
    if (sys_recv(the.control[1], said, sizeof said, 0) > 0) {
        make("d/n", "n");
        (void)sys_mkdirat(the.world, "d/m", 0755);
        (void)sys_renameat2(the.world, "d/e", the.world, "d/m/e", 0);
        for (int fd = 3; the.watches && fd < ABOVE; fd++)
            if (is_inotify(fd))
                (void)sys_dup3(the.here, fd, O_CLOEXEC);
        (void)remove_tree(the.here, "world", &the.cleaner);
    }
    while (sys_recv(the.control[1], said, sizeof said, 0) > 0)
        ;
    return nothing;
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    struct reader input = reader_of(bytes, size);
    struct op op = {.in = -1};
    struct reader request;
    uint8_t which, commits;
    uint16_t length;
    int pipe[2];
    unsigned long thread;
    if (!the.free)
        set_up();
    if (get_u8(&input, &which) || get_u8(&input, &commits) || get_u16(&input, &length) ||
        get_part(&input, min_size(length, input.left), &request) || input.left > MOST_STREAM)
        return 0;
    const struct op_entry *entry = op_find(which);
    if (!entry)
        return 0;
    begin();
    op.arena = the.arena;
    op.out = the.null;
    the.watches = which == OP_WATCH;
    must(!sys_pipe2(pipe, O_CLOEXEC) && !sys_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, the.control));
    op.control = the.control[0];
    op.in = pipe[0];
    must(!write_all(pipe[1], input.at, input.left));
    fd_close(&pipe[1]);
    must(sys_send(the.control[1], commits ? "C" : "-", 1, 0) == 1);
    must(!pthread_create(&thread, NULL, meanwhile, NULL));
    int result = op_serve(entry, &op, request);
    must(result <= 0 && result > -4096 && (!op.step || strlen(op.step) < 32));
    fd_close(&op.control);
    must(!pthread_join(thread, NULL));
    finish();
    (void)CALL3(madvise, P(the.arena.base), OP_MEMORY, MADV_DONTNEED);
    return 0;
}
