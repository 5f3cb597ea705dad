/* Every file operation: which, its request, and what comes on its stream. It runs in a separate directory, which is the
 * root meanwhile, with some files in it. A second thread changes them once the operation has answered, and removes them.
 * So WATCH has something to tell. It ends as its descriptor has become one of a directory. */
#include "../op.h"
#include "world.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);
int pthread_create(unsigned long *thread, const void *attributes, void *(*run)(void *), void *argument);
int pthread_join(unsigned long thread, void **result);

enum { MOST_STREAM = 1 << 15, FEW = 100 };

static struct {
    struct arena arena;
    int control[2];
    bool watches;
} the;

static bool is_inotify(int fd)
{
    static const char kind[] = "anon_inode:inotify";
    char number[DECIMAL_SIZE], target[sizeof kind];
    long size = sys_readlinkat(world.descriptors, decimal(number, (uint64_t)fd), target, sizeof target);
    return size == sizeof kind - 1 && !memcmp(target, kind, sizeof kind - 1);
}

static void *meanwhile(void *nothing)
{
    char said[1 << 12];
    if (sys_recv(the.control[1], said, sizeof said, 0) > 0) {
        make("d/n", "n");
        (void)sys_mkdirat(world.files, "d/m", 0755);
        (void)sys_renameat2(world.files, "d/e", world.files, "d/m/e", 0);
        for (int fd = 3; the.watches && fd < FEW; fd++)
            if (is_inotify(fd))
                (void)sys_dup3(world.here, fd, O_CLOEXEC);
        world_remove();
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
    if (!world.free) {
        world_open();
        must(!arena_open(&the.arena, OP_MEMORY));
    }
    if (get_number(&input, &which) || get_number(&input, &commits) || get_number(&input, &length) ||
        get_part(&input, min_size(length, input.left), &request) || input.left > MOST_STREAM)
        return 0;
    const struct op_entry *entry = op_find(which);
    if (!entry)
        return 0;
    world_begin();
    op.arena = the.arena;
    op.out = world.null;
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
    world_end();
    (void)CALL3(madvise, P(the.arena.base), OP_MEMORY, MADV_DONTNEED);
    return 0;
}
