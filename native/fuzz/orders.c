/* A host sends any frames to pid 1 of a container: orders, and what follows each on its channel. Pid 1 starts, stops and
 * ends real agents. libFuzzer is pid 1 of a separate pid namespace. */
#define NAMESPACES (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
#include "host.h"
#include "../init.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

enum { MOST_CALLERS = 4, CALL = 0, MS_REC = 0x4000, MS_PRIVATE = 0x40000 };

static struct init the_init;
static struct agent the_child;
static int callers[MOST_CALLERS];
static size_t calls;

/* The file of the listener that goes with frames. */
static struct unix_address address = {AF_UNIX, "/listener"};

static void call_it(void)
{
    if (calls == MOST_CALLERS)
        return;
    int fd = sys_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC);
    must(fd >= 0 && sys_fcntl(fd, F_SETFL, O_NONBLOCK) >= 0);
    (void)sys_connect(fd, &address, sizeof address); /* its queue may be full */
    callers[calls++] = fd;
}

/* Its limits are those of pid 1. */
static bool has_limits(uint16_t code, struct reader body)
{
    struct begin_message message;
    return code == OP_BEGIN && !message_read(body, &begin_shape, &message) && message.rlimits.left;
}

static void turned(struct loop *loop)
{
    host.turned(loop);
    if (loop->stopped)
        return;
    hear();
    bool calls_it = host.script.left && *host.script.at == CALL, over = !host_step();
    if (calls_it)
        call_it();
    host.quiet += over;
    if (host.quiet == QUIET_TURNS) {
        fd_close(&host.fd);
        while (calls)
            fd_close(&callers[--calls]);
    }
    loop->stopped = host.quiet > QUIET_TURNS + 2;
    timer_set(loop, &host.tick, loop_now() + (over ? QUIET : 0)); /* an agent has a moment for its start */
}

/* Without its list of processes each pause would last its five seconds. An ordinary user gets none in a container that
 * masks parts of /proc. */
static void show_processes(void)
{
    (void)sys_mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    must(!sys_mkdirat(world.files, "proc", 0755));
    (void)sys_mount("proc", "/proc", "proc", 0, NULL);
}

/* As init.c does at its start. */
static void begin(struct reader script)
{
    struct init *init = &the_init;
    memset(init, 0, sizeof *init);
    memset(&the_child, 0, sizeof the_child);
    calls = 0;
    init->child = &the_child;
    init->agent.init = init;
    init->agent.null = world.null;
    init->agent.alone = true;
    must(!agent_open(&init->agent));
    host_begin(&init->agent, script, turned);
    host.harms = has_limits;
    host.given = sys_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC);
    must(host.given >= 0 && !CALL3(bind, host.given, P(&address), sizeof address) && !CALL2(listen, host.given, 16));
}

static void end(void)
{
    (void)sys_kill(-1, SIGKILL);
    while (CALL4(wait4, -1, 0, 0, 0) > 0)
        ;
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++)
        if (the_init.identities[i].filter)
            sys_unmap(the_init.identities[i].filter, the_init.identities[i].filter_size);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    if (!world.free)
        world_open();
    world_begin();
    show_processes();
    begin(reader_of(bytes, size));
    loop_run(&the_init.agent.loop);
    end();
    (void)CALL2(umount2, P("/proc"), MNT_DETACH);
    world_end();
    return 0;
}
