/* A process of ours and its streams. */
#include "agent.h"

enum { CHUNK = 64 << 10, TERMINAL_HOLDS = 256 << 10 };

/* Whether of two that have ended `child` is forgotten first. */
static bool sooner(const struct child *child, const struct child *other)
{
    return child->kept == other->kept ? child->number < other->number : other->kept;
}

static struct child *free_one(struct child *table, size_t count)
{
    struct child *oldest = NULL;
    for (size_t i = 0; i < count; i++) {
        struct child *child = &table[i];
        if (child->state == CHILD_FREE)
            return child;
        if (child->state == CHILD_ENDED && !child->channels && !child->killer && (!oldest || sooner(child, oldest)))
            oldest = child;
    }
    return oldest;
}

static struct child *free_of(struct agent *agent, enum child_kind kind)
{
    if (kind == CHILD_OPERATION)
        return free_one(agent->helpers, LIMIT_HELPERS);
    return kind == CHILD_RELAY ? free_one(agent->relays, LIMIT_RELAYS) : free_one(agent->commands, LIMIT_COMMANDS);
}

struct child *child_new(struct agent *agent, enum child_kind kind)
{
    struct child *child = free_of(agent, kind);
    if (!child)
        return NULL;
    if (child->state == CHILD_ENDED) {
        child->flags = 0; /* nothing is kept of it any more */
        child->kept = false;
        child_release(child);
    }
    memset(child, 0, sizeof *child);
    child->agent = agent;
    child->kind = kind;
    child->terminal = child->cgroup = child->control.fd = child->in.watch.fd = -1;
    for (unsigned i = 0; i < 2; i++)
        child->out[i].watch.fd = -1;
    return child;
}

static void outlet_ready(struct watch *, uint32_t events);
static void inlet_ready(struct watch *, uint32_t events);

int child_outlet(struct child *child, unsigned index, int fd, size_t ring_size, bool terminal)
{
    struct outlet *outlet = &child->out[index];
    outlet->watch = (struct watch){fd, 0, outlet_ready};
    outlet->child = child;
    outlet->terminal = terminal;
    outlet->ring = ring_of(ring_size);
    int result = sys_fcntl(fd, F_SETFL, O_NONBLOCK);
    return result < 0 ? result : watch_for(&child->agent->loop, &outlet->watch, EPOLLIN);
}

int child_inlet(struct child *child, int fd)
{
    child->in.watch = (struct watch){fd, 0, inlet_ready};
    child->in.child = child;
    child->in.ring = ring_of(LIMIT_WINDOW);
    return sys_fcntl(fd, F_SETFL, O_NONBLOCK);
}

void child_outlet_close(struct child *child, unsigned index)
{
    watch_close(&child->agent->loop, &child->out[index].watch);
}

bool child_over(const struct outlet *outlet)
{
    return outlet->watch.fd < 0;
}

/* Of a relay or an operation the host gets the error. A command's status says enough. */
static void fail(struct child *child, int result)
{
    child->failure = child->failure ? child->failure : result;
}

/* Nothing more comes of this stream. The end of a command says so. */
static void outlet_fail(struct outlet *outlet, int result)
{
    struct child *child = outlet->child;
    fail(child, result);
    child->ending.ended |= outlet == child->out ? ENDED_OUT_OPEN : ENDED_ERR_OPEN;
    watch_close(&child->agent->loop, &outlet->watch);
}

/* Bytes from here on may not be overwritten: a command in the foreground waits for who reads. */
static uint64_t keep_from(const struct child *child, unsigned index)
{
    const struct ring *ring = &child->out[index].ring;
    if (child->flags & EXEC_BACKGROUND)
        return ring->end;
    for (const struct channel *channel = child->channels; channel; channel = channel->next)
        if (channel->role == ROLE_OWNER && channel->out[index].flowing)
            return child->kind == CHILD_COMMAND ? child->out[index].taken : channel->out[index].at;
    return child->kept ? child->out[index].taken : ring->end; /* no reader */
}

static bool has_room(const struct child *child, unsigned index)
{
    const struct outlet *outlet = &child->out[index];
    return outlet->ring.end - keep_from(child, index) < outlet->ring.size;
}

/* One read. False: there is nothing more to be had now, or ever. */
static bool outlet_read(struct outlet *outlet)
{
    struct child *child = outlet->child;
    unsigned index = (unsigned)(outlet - child->out);
    size_t most = outlet->cut ? min_size(outlet->left, CHUNK) : CHUNK;
    long got = most ? ring_fill(&outlet->ring, outlet->watch.fd, keep_from(child, index), most) : 0;
    if (got == -EAGAIN && (!outlet->cut || !has_room(child, index)))
        return false;
    if (got > 0 && outlet->cut)
        outlet->left -= (size_t)got;
    /* EIO of a terminal: no process holds its other side. EAGAIN: another process has taken what was left. */
    if (got < 0 && got != -EAGAIN && !(got == -EIO && outlet->terminal))
        outlet_fail(outlet, (int)got); /* a reset, say; told after what has come before it */
    else if (got <= 0 || (outlet->cut && !outlet->left))
        child_outlet_close(child, index);
    return outlet->watch.fd >= 0;
}

static void outlet_ready(struct watch *watch, uint32_t events)
{
    struct outlet *outlet = CONTAINER_OF(watch, struct outlet, watch);
    (void)outlet_read(outlet);
    child_push(outlet->child);
}

/* Whether another process still holds the other side of a pipe. */
static bool still_held(int fd)
{
    struct poll poll = {fd, 0, 0};
    (void)sys_poll(&poll, 1, &(struct timespec){0, 0});
    return !(poll.happened & EPOLLHUP);
}

/* Its writer has died. Its output ends with the bytes in the pipe now: not less, and none that others write later. */
static void outlet_cut(struct outlet *outlet)
{
    int held = 0;
    if (outlet->watch.fd < 0)
        return;
    outlet->cut = true;
    if (outlet->terminal) {
        /* FIONREAD does not count what is still on its way through the line discipline; a read waits for that. */
        outlet->left = TERMINAL_HOLDS;
    } else {
        (void)sys_ioctl(outlet->watch.fd, FIONREAD, P(&held));
        outlet->left = (size_t)held;
        if (still_held(outlet->watch.fd))
            outlet->child->ending.ended |= outlet == outlet->child->out ? ENDED_OUT_OPEN : ENDED_ERR_OPEN;
    }
}

static void give_credit(struct inlet *inlet)
{
    struct channel *owner = channel_owner(inlet->child);
    uint32_t bytes = inlet->written;
    if (!owner || bytes < LIMIT_WINDOW / 2)
        return;
    owner->window += bytes;
    inlet->written = 0;
    wire_send(&owner->connection->wire, KIND_CREDIT, STREAM_IN, owner->number, &bytes, sizeof bytes);
}

static void inlet_write(struct inlet *inlet)
{
    struct child *child = inlet->child;
    bool full = false;
    while (!full && inlet->watch.fd >= 0 && inlet->ring.first < inlet->ring.end) {
        long written = ring_drain(&inlet->ring, inlet->watch.fd);
        if (written > 0) {
            inlet->written += (uint32_t)written;
        } else if (written == -EAGAIN) {
            full = true;
        } else { /* it does not read any more */
            struct channel *owner = channel_owner(child);
            watch_close(&child->agent->loop, &inlet->watch);
            if (written != -EPIPE && written != -ECONNRESET)
                fail(child, (int)written);
            if (owner)
                wire_send(&owner->connection->wire, KIND_EOF, STREAM_IN, owner->number, NULL, 0);
        }
    }
    give_credit(inlet);
    if (!full && inlet->ending) {
        int result = child->kind == CHILD_RELAY && inlet->watch.fd >= 0 ? sys_shutdown(inlet->watch.fd, SHUT_WR) : 0;
        if (result < 0 && result != -ENOTCONN) /* it has hung up: the outlet hears of it */
            fail(child, result);
        watch_close(&child->agent->loop, &inlet->watch);
    }
    int result = watch_for(&child->agent->loop, &inlet->watch, full ? EPOLLOUT : 0);
    if (result < 0) {
        fail(child, result);
        watch_close(&child->agent->loop, &inlet->watch);
    }
    child_push(child);
}

static void inlet_ready(struct watch *watch, uint32_t events)
{
    inlet_write(CONTAINER_OF(watch, struct inlet, watch));
}

void child_input(struct child *child, struct reader bytes)
{
    struct inlet *inlet = &child->in;
    if (inlet->watch.fd < 0 || inlet->over)
        return; /* the host knows, or has said itself, that no process reads */
    if (ring_append(&inlet->ring, bytes.at, bytes.left)) {
        fail(child, -ENOMEM);
        watch_close(&child->agent->loop, &inlet->watch);
    }
    inlet_write(inlet);
}

void child_input_end(struct child *child)
{
    static const unsigned char end_of_transmission = 4; /* what a person types to say so */
    struct inlet *inlet = &child->in;
    if (inlet->watch.fd < 0 || inlet->over)
        return;
    inlet->over = true;
    if (child->terminal < 0)
        inlet->ending = true;
    else if (inlet->ring.end - inlet->ring.first < inlet->ring.size)
        (void)ring_append(&inlet->ring, &end_of_transmission, 1);
    inlet_write(inlet);
}

static void push_channels(struct child *child)
{
    struct channel *next;
    for (struct channel *channel = child->channels; channel; channel = next) {
        next = channel->next;
        channel_push(channel);
    }
}

/* After a cut, reading goes on without epoll: another process may have emptied the pipe, and nothing would ever come. */
static bool read_cut(struct child *child)
{
    bool got = false;
    for (unsigned i = 0; i < 2; i++) {
        struct outlet *outlet = &child->out[i];
        while (outlet->cut && outlet->watch.fd >= 0 && has_room(child, i)) {
            got = true;
            (void)outlet_read(outlet);
        }
    }
    return got;
}

void child_died(struct child *child, int wait_status)
{
    int number = wait_status & 0x7f;
    if (child->kind == CHILD_COMMAND)
        command_reply(child);
    child->state = CHILD_ENDED;
    child->pid = 0;
    child->ending.code = number ? -1 : (wait_status >> 8) & 0xff;
    child->ending.signal = (uint32_t)number;
    child->ending.duration = loop_now() - child->started;
    if (wait_status && child->agent->tells && child->kind == CHILD_COMMAND && !(child->ending.ended & ENDED_TIME))
        child->ending.ended |= limits_hit(child->agent, child->limit_hits);
    timer_clear(&child->agent->loop, &child->timer);
    watch_close(&child->agent->loop, &child->in.watch);
    ring_free(&child->in.ring);
    for (unsigned i = 0; i < 2; i++)
        outlet_cut(&child->out[i]);
    (void)read_cut(child); /* EXIT comes after the output wherever there is room for it */
    child_push(child);
    child_release(child); /* where no channel was left to do it */
}

/* Waits for more where there is room for it. False: of one there will be no more, and that is to be told. */
static bool watch_outlets(struct child *child)
{
    bool watched = true;
    for (unsigned i = 0; i < 2; i++) {
        struct outlet *outlet = &child->out[i];
        int result = watch_for(&child->agent->loop, &outlet->watch, !outlet->cut && has_room(child, i) ? EPOLLIN : 0);
        if (result < 0) {
            outlet_fail(outlet, result);
            watched = false;
        }
    }
    return watched;
}

void child_push(struct child *child)
{
    do {
        if (child->kind == CHILD_RELAY)
            relay_look(child);
        do
            push_channels(child);
        while (read_cut(child));
    } while (!watch_outlets(child));
}

/* The size of a ring says whether it counts among those of background commands. */
void child_release(struct child *child)
{
    if (child->channels || child->state != CHILD_ENDED)
        return;
    fd_close(&child->cgroup);
    fd_close(&child->terminal);
    watch_close(&child->agent->loop, &child->control);
    if (child->kept || child->flags & EXEC_BACKGROUND)
        return;
    for (unsigned i = 0; i < 2; i++) {
        child_outlet_close(child, i);
        if (child->out[i].ring.size == LIMIT_BACKGROUND_RING)
            child->agent->rings -= LIMIT_BACKGROUND_RING;
        ring_free(&child->out[i].ring);
        child->out[i].ring.size = 0;
    }
    if (child->kind != CHILD_COMMAND)
        child->state = CHILD_FREE;
}
