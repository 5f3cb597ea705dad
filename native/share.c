/* Directories of the host's in a virtual machine: one file system is mounted, its directories where they belong, and one
 * process carries messages between the kernel and a port (include/uapi/linux/fuse.h).
 *
 * The process does not look into what it carries but for lengths. It never waits for one side while the other has
 * something for it, so that the kernel's answers are always taken. Between FUSE's messages go the host's to it: eight
 * bytes, shorter than any of FUSE. Told to pause, it takes no more requests, and says so when all that it had taken are
 * answered: then nothing is under way anywhere, and the machine may be stopped and copied. */
#include "io.h"
#include "machine.h"

#define PLACE "/run/paddock/files"
enum {
    MAX_DATA = 512 << 10, /* of one read or write */
    MAX_MESSAGE = MAX_DATA + 4096,
    CONTROL_SIZE = 8, MIN_ANSWER = 16,
    FORGET = 2, BATCH_FORGET = 42, /* are not answered */
    PAUSE = 1, PAUSED = 2,
};
static const uint64_t UNCONNECTED = 10000000u;

struct relay {
    int device, port;
    unsigned char *in; /* answers from the port */
    size_t in_end;
    struct queue out; /* one request, and a control, to it */
    size_t unanswered; /* requests */
    bool paused, over;
};

/* A request of the kernel's, to the port. */
static void forward_request(struct relay *relay)
{
    uint32_t opcode;
    long got = sys_read(relay->device, relay->out.base, MAX_MESSAGE);
    if (got == -ENODEV || got == -ECONNABORTED)
        relay->over = true;
    if (got < CONTROL_SIZE) /* it was taken back meanwhile */
        return;
    memcpy(&opcode, relay->out.base + 4, sizeof opcode);
    relay->unanswered += opcode != FORGET && opcode != BATCH_FORGET;
    relay->out.end = (size_t)got;
    (void)queue_write(&relay->out, relay->port);
}

static void report_paused(struct relay *relay)
{
    static const uint32_t message[2] = {CONTROL_SIZE, PAUSED};
    unsigned char *to = queue_append(&relay->out, sizeof message);
    if (to) { /* a host that tells us again and again to pause, and does not read, gets no more answers */
        memcpy(to, message, sizeof message);
        (void)queue_write(&relay->out, relay->port);
    }
}

static void handle_message(struct relay *relay, const unsigned char *message, uint32_t size)
{
    uint32_t control;
    memcpy(&control, message + 4, sizeof control);
    if (size == CONTROL_SIZE) {
        relay->paused = control == PAUSE;
    } else {
        relay->unanswered -= relay->unanswered > 0;
        long written = sys_write(relay->device, message, size); /* -ENOENT: the asking process has been killed */
        relay->over |= written == -ENODEV || written == -ECONNABORTED;
    }
    if (relay->paused && !relay->unanswered)
        report_paused(relay);
}

/* Passes bytes from the port to the kernel. */
static void receive_messages(struct relay *relay)
{
    size_t at = 0;
    uint32_t size;
    long got = sys_read(relay->port, relay->in + relay->in_end, MAX_MESSAGE - relay->in_end);
    if (!got) /* no process is at the other side: after a stop, until it continues */
        sys_sleep(UNCONNECTED);
    if (got <= 0)
        return;
    relay->in_end += (size_t)got;
    while (relay->in_end - at >= sizeof size) {
        memcpy(&size, relay->in + at, sizeof size);
        if (size != CONTROL_SIZE && (size < MIN_ANSWER || size > MAX_MESSAGE))
            sys_exit(1); /* the next message can't be found */
        if (relay->in_end - at < size)
            break;
        handle_message(relay, relay->in + at, size);
        at += size;
    }
    memmove(relay->in, relay->in + at, relay->in_end - at);
    relay->in_end -= at;
}

_Noreturn static void relay_messages(int device, int port)
{
    enum { ROOM = MAX_MESSAGE + CONTROL_SIZE };
    struct relay relay = {.device = device, .port = port, .in = sys_map(MAX_MESSAGE), .out = {.base = sys_map(ROOM), .size = ROOM}};
    /* Memory that is short must not wait for us while we wait for memory, nor take us. */
    (void)sys_prctl(PR_SET_IO_FLUSHER, 1);
    (void)write_file(AT_FDCWD, "/proc/self/oom_score_adj", "-1000");
    while (relay.in && relay.out.base && !relay.over) {
        bool unsent = relay.out.end > 0;
        struct poll polls[2] = {{port, (short)(EPOLLIN | (unsent ? EPOLLOUT : 0)), 0},
                                {device, unsent || relay.paused ? 0 : EPOLLIN, 0}};
        (void)sys_poll(polls, 2, NULL);
        if (polls[0].happened & EPOLLOUT)
            (void)queue_write(&relay.out, port);
        if (polls[0].happened & ~EPOLLOUT)
            receive_messages(&relay);
        if (polls[1].happened & ~EPOLLIN)
            relay.over = true; /* it is unmounted */
        else if (polls[1].happened && !relay.out.end && !relay.paused)
            forward_request(&relay);
    }
    sys_exit(0);
}

int shares_mount(int port, int *relay)
{
    static const char rest[] = ",rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read=524288";
    char options[PATH_MAX], number[DECIMAL_SIZE];
    HELD int device = TRY(sys_openat(AT_FDCWD, "/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK, 0));
    TRY(path_make(AT_FDCWD, PLACE));
    TRY(sys_fchmodat(AT_FDCWD, PLACE, 0700));
    (void)JOIN(options, PATH_MAX, "fd=", decimal(number, (uint64_t)device), rest);
    TRY(sys_mount("paddock", PLACE, "fuse", MS_NOSUID | MS_NODEV, options));
    *relay = 0;
    int pid = TRY(fork_helper((int[]){device, port}, 2));
    if (!pid)
        relay_messages(OP_CONTROL, OP_INPUT);
    *relay = pid;
    return 0;
}

int shares_show(uint32_t number, bool writable, const char *target)
{
    char source[PATH_MAX], digits[DECIMAL_SIZE];
    (void)JOIN(source, PATH_MAX, PLACE "/", decimal(digits, number));
    TRY(path_make(AT_FDCWD, target));
    TRY(sys_mount(source, target, NULL, MS_BIND, NULL));
    if (!writable)
        TRY(sys_mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL));
    return 0;
}
