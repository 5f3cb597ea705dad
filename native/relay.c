/* Connections of the sandbox's own that a channel carries: CONNECT and ACCEPT. And HAND, which makes none.
 *
 * A relay is a child without a process: its outlet and its inlet are two descriptors of one socket. It ends when both
 * directions have, when the socket fails, or when the host closes the channel. */
#include "agent.h"
#include "io.h"

enum { BACKLOG = 16, MODE = 0600 };

static struct child *relay_new(struct channel *channel)
{
    struct agent *agent = agent_of(channel);
    struct child *child = child_new(agent, CHILD_RELAY);
    if (!child) {
        channel_error(channel, -EAGAIN, "relays");
        return NULL;
    }
    child->state = CHILD_RUNNING;
    child->number = ++agent->next_number;
    channel_follow(channel, child, ROLE_OWNER);
    return child;
}

static void relay_socket_leave(struct child *child)
{
    struct relay_socket *socket = child->socket;
    child->socket = NULL;
    if (!socket || --socket->users)
        return;
    watch_close(&child->agent->loop, &socket->listener);
    (void)sys_unlinkat(AT_FDCWD, socket->address.path, 0);
}

void relay_end(struct child *child, int failure)
{
    struct loop *loop = &child->agent->loop;
    if (child->state != CHILD_RUNNING)
        return;
    child->state = CHILD_ENDED;
    child->failure = failure;
    watch_close(loop, &child->control);
    watch_close(loop, &child->in.watch);
    ring_free(&child->in.ring);
    child_outlet_close(child, 0);
    relay_socket_leave(child);
}

void relay_look(struct child *child)
{
    const struct channel *owner = channel_owner(child);
    bool over = owner && owner->replied && child_over(&child->out[0]) && child->in.watch.fd < 0;
    if (over || child->failure)
        relay_end(child, child->failure);
}

void relay_conclude(struct channel *channel)
{
    int failure = channel->child->failure;
    if (failure)
        channel_error(channel, failure, "port");
    else
        channel_close(channel);
}

/* The socket is the relay's. */
static void join(struct child *child, int fd)
{
    struct channel *owner = channel_owner(child);
    int copy = sys_fcntl(fd, F_DUPFD_CLOEXEC, 3);
    must(owner);
    int result = child_outlet(child, 0, fd, LIMIT_RING, false);
    if (copy < 0 || result) {
        fd_close(&copy);
        relay_end(child, copy < 0 ? copy : result);
    } else if ((result = child_inlet(child, copy)) < 0) {
        relay_end(child, result);
    } else {
        channel_reply_bytes(owner, NULL, 0);
        owner->out[0].flowing = true;
    }
    child_push(child);
}

/* ports */

/* Numbers, never names: a resolver would read files of the sandbox's. */
static int connect_to(unsigned attempt, uint16_t port)
{
    uint8_t high = (uint8_t)(port >> 8), low = (uint8_t)port;
    struct ipv4_address four = {AF_INET, {high, low}, {127, 0, 0, 1}, {0}};
    struct ipv6_address six = {.family = AF_INET6, .port = {high, low}, .host[15] = 1};
    int fd = sys_socket(attempt ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC);
    int result = fd < 0 ? fd : attempt ? sys_connect(fd, &six, sizeof six) : sys_connect(fd, &four, sizeof four);
    if (result >= 0 || result == -EINPROGRESS)
        return fd;
    fd_close(&fd);
    return result;
}

static void decided(struct watch *watch, uint32_t events);

/* The address that was tried first says why nothing listens. */
static void refused(struct child *child, int result)
{
    watch_close(&child->agent->loop, &child->control);
    child->refusal = child->refusal ? child->refusal : result;
}

static void attempt(struct child *child)
{
    while (child->attempts < 2) {
        int fd = connect_to(child->attempts++, child->port);
        child->control = (struct watch){fd, 0, decided};
        int result = fd < 0 ? fd : watch_for(&child->agent->loop, &child->control, EPOLLOUT);
        if (!result)
            return;
        refused(child, result);
    }
    relay_end(child, child->refusal);
    child_push(child);
}

static void decided(struct watch *watch, uint32_t events)
{
    struct child *child = CONTAINER_OF(watch, struct child, control);
    int error = 0;
    (void)watch_for(&child->agent->loop, watch, 0);
    int result = sys_getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error);
    /* A reset is an answer: it was connected, and the other side has hung up since. The host hears of it. */
    if (result < 0 || (error && error != ECONNRESET && error != EPIPE)) {
        refused(child, result < 0 ? result : -error);
        attempt(child);
    } else {
        join(child, fd_take(&watch->fd));
    }
}

void relay_connect(struct channel *channel, const void *message, struct frame *frame)
{
    const struct connect_message *request = message;
    if (!request->port || request->port > UINT16_MAX)
        return channel_error(channel, -EINVAL, "port");
    struct child *child = relay_new(channel);
    if (!child)
        return;
    child->port = (uint16_t)request->port;
    attempt(child);
}

/* unix sockets */

static struct child *longest_waiting(struct relay_socket *socket)
{
    struct child *first = NULL;
    for (size_t i = 0; i < LIMIT_RELAYS; i++) {
        struct child *child = &socket->agent->relays[i];
        bool waits = child->state == CHILD_RUNNING && child->socket == socket && child->out[0].watch.fd < 0;
        const struct channel *owner = waits ? channel_owner(child) : NULL;
        if (owner && !owner->replied && (!first || child->number < first->number))
            first = child;
    }
    return first;
}

/* While no ACCEPT waits, callers stand in the kernel's queue. */
static void relay_socket_watch(struct relay_socket *socket)
{
    struct child *child;
    int result = -1;
    while (result < 0 && (child = longest_waiting(socket))) {
        result = watch_for(&socket->agent->loop, &socket->listener, EPOLLIN);
        if (result < 0) {
            relay_end(child, result);
            child_push(child);
        }
    }
    if (result < 0)
        (void)watch_for(&socket->agent->loop, &socket->listener, 0);
}

static void relay_socket_ready(struct watch *watch, uint32_t events)
{
    struct relay_socket *socket = CONTAINER_OF(watch, struct relay_socket, listener);
    struct child *child = longest_waiting(socket);
    int fd = child ? sys_accept4(watch->fd, SOCK_CLOEXEC | SOCK_NONBLOCK) : -EAGAIN;
    if (fd >= 0) {
        join(child, fd);
    } else if (child && fd != -EAGAIN) { /* short of descriptors: the host asks again */
        relay_end(child, fd);
        child_push(child);
    }
    if (socket->users)
        relay_socket_watch(socket);
}

static int relay_socket_open(struct relay_socket *socket)
{
    int fd = sys_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC);
    socket->listener = (struct watch){fd, 0, relay_socket_ready};
    if (fd < 0)
        return fd;
    (void)sys_unlinkat(AT_FDCWD, socket->address.path, 0);
    int result = (int)CALL3(bind, fd, P(&socket->address), sizeof socket->address);
    bool bound = !result;
    if (!result)
        result = sys_fchmodat(AT_FDCWD, socket->address.path, MODE);
    if (!result)
        result = (int)CALL2(listen, fd, BACKLOG);
    if (result)
        fd_close(&socket->listener.fd);
    if (result && bound)
        (void)sys_unlinkat(AT_FDCWD, socket->address.path, 0);
    return result;
}

/* The one at this path, which is opened if it is not open. */
static int relay_socket_find(struct agent *agent, struct reader path, struct relay_socket **found)
{
    struct relay_socket *unused = NULL;
    for (size_t i = 0; i < LIMIT_RELAY_SOCKETS; i++) {
        struct relay_socket *socket = &agent->relay_sockets[i];
        if (!socket->users)
            unused = socket;
        else if (!memcmp(socket->address.path, path.at, path.left) && !socket->address.path[path.left]) {
            *found = socket;
            return 0;
        }
    }
    if (!unused)
        return -ENOSPC;
    memset(unused, 0, sizeof *unused);
    unused->agent = agent;
    unused->address.family = AF_UNIX;
    memcpy(unused->address.path, path.at, path.left);
    *found = unused;
    return relay_socket_open(unused);
}

void relay_accept(struct channel *channel, const void *message, struct frame *frame)
{
    const struct accept_message *request = message;
    struct relay_socket *socket;
    if (!request->path.left || request->path.at[0] != '/')
        return channel_error(channel, -EINVAL, "path");
    struct child *child = relay_new(channel);
    if (!child)
        return;
    int result = relay_socket_find(agent_of(channel), request->path, &socket);
    if (result) {
        relay_end(child, result);
        child_push(child);
        return;
    }
    child->socket = socket;
    socket->users++;
    relay_socket_watch(socket);
}

/* descriptors of the host's, for a process that runs beside the agent */

static int pass_on(const struct hand_message *request, const struct frame *frame)
{
    struct unix_address to = {.family = AF_UNIX}; /* an abstract name begins with a NUL */
    memcpy(to.path + 1, request->name.at, request->name.left);
    HELD int fd = TRY(sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC));
    TRY(sys_connect(fd, &to, offsetof(struct unix_address, path) + 1 + request->name.left));
    return (int)send_fds(fd, request->text.at, request->text.left, frame->descriptors, frame->descriptor_count);
}

void relay_hand(struct channel *channel, const void *message, struct frame *frame)
{
    const struct hand_message *request = message;
    bool whole = request->name.left && request->text.left && frame->descriptor_count;
    request_answer(channel, whole ? pass_on(request, frame) : -EINVAL, "hand");
}
