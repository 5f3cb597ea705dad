/* The frames and the credit that a request may still send. */
#include "init.h"

struct agent *agent_of(struct channel *channel)
{
    return channel->connection->agent;
}

void channel_follow(struct channel *channel, struct child *child, enum role role)
{
    channel->role = role;
    channel->child = child;
    channel->next = child->channels;
    child->channels = channel;
}

struct channel *channel_owner(struct child *child)
{
    for (struct channel *channel = child->channels; channel; channel = channel->next)
        if (channel->role == ROLE_OWNER && !channel->leaving)
            return channel;
    return NULL;
}

void channel_free(struct channel *channel)
{
    struct child *child = channel->child;
    struct wait *wait = channel->wait;
    if (child) {
        struct channel **at = &child->channels;
        while (*at != channel)
            at = &(*at)->next;
        *at = channel->next;
    }
    memset(channel, 0, sizeof *channel);
    if (child)
        child_release(child);
    if (wait)
        init_let_go(wait);
}

void channel_reply_bytes(struct channel *channel, const void *body, size_t size)
{
    channel->replied = true;
    wire_send(&channel->connection->wire, KIND_REPLY, 0, channel->number, body, size);
}

void channel_reply(struct channel *channel, const struct shape *shape, const void *message)
{
    channel->replied = true;
    wire_send_message(&channel->connection->wire, KIND_REPLY, channel->number, shape, message);
}

void channel_error(struct channel *channel, int error, const char *step)
{
    struct error_message message = {.errno = (uint32_t)-error, .step = reader_of(step, strlen(step))};
    wire_send_message(&channel->connection->wire, KIND_ERROR, channel->number, &error_shape, &message);
    channel_free(channel);
}

void channel_close(struct channel *channel)
{
    wire_send(&channel->connection->wire, KIND_CLOSE, 0, channel->number, NULL, 0);
    channel_free(channel);
}

/* Sends one stream, as far as credit and room allow. -ENODATA: its next bytes are no longer kept. */
static int push_stream(struct channel *channel, unsigned index)
{
    struct flow *flow = &channel->out[index];
    const struct outlet *outlet = &channel->child->out[index];
    struct wire *wire = &channel->connection->wire;
    while (flow->flowing) {
        size_t ready = (size_t)(min_u64(outlet->ring.end, flow->until) - flow->at);
        size_t size = min_size(min_size(ready, flow->credit), wire_room(wire));
        if (flow->at < outlet->ring.first)
            return -ENODATA;
        if (!ready && (child_over(outlet) || flow->at == flow->until)) {
            wire_send(wire, KIND_EOF, (uint16_t)(index + 1), channel->number, NULL, 0);
            flow->flowing = false;
        } else if (!size) {
            wire->starved |= ready && flow->credit;
            return 0;
        } else {
            unsigned char *to = wire_send_data(wire, (uint16_t)(index + 1), channel->number, size);
            if (!to)
                return 0;
            ring_copy(&outlet->ring, flow->at, to, size);
            flow->at += size;
            flow->credit -= (uint32_t)size;
        }
    }
    return 0;
}

/* The command has ended. EXIT does not wait for a host that does not read; CLOSE does. */
static void conclude_command(struct channel *channel)
{
    bool flowing = channel->out[0].flowing || channel->out[1].flowing;
    if (!channel->exited) {
        struct exit_message ending = channel->child->ending;
        ending.ended |= flowing ? ENDED_UNDRAINED : 0;
        wire_send_message(&channel->connection->wire, KIND_EXIT, channel->number, &exit_shape, &ending);
        channel->exited = true;
    }
    if (!flowing && !(channel->child->kept && channel->role == ROLE_OWNER))
        channel_close(channel);
}

/* Its child has ended, and so have its streams: sends the final frame. */
static void conclude(struct channel *channel)
{
    switch (channel->child->kind) {
    case CHILD_OPERATION:
        return helper_conclude(channel);
    case CHILD_RELAY:
        return relay_conclude(channel);
    case CHILD_COMMAND:
        if (!channel->child->killer)
            conclude_command(channel);
    }
}

void channel_push(struct channel *channel)
{
    struct child *child = channel->child;
    if (channel->leaving && child->state == CHILD_ENDED && !child->killer)
        channel_close(channel);
    if (!channel->number || channel->leaving || channel->role == ROLE_KILLER)
        return;
    if (!channel->replied) {
        if (child->kind != CHILD_COMMAND && child->state == CHILD_ENDED)
            conclude(channel);
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        if (push_stream(channel, i)) {
            channel_error(channel, -ENODATA, "follow");
            return;
        }
    bool flowing = channel->out[0].flowing || channel->out[1].flowing;
    if (channel->out[0].until != UINT64_MAX && !flowing) /* ATTACH with NOW */
        channel_close(channel);
    else if (child->state == CHILD_ENDED && (!flowing || child->kind == CHILD_COMMAND))
        conclude(channel);
}

/* The streams of a relay carry nothing before the REPLY: no process is at the other end yet. */
static bool too_early(const struct channel *channel)
{
    return channel->child && channel->child->kind == CHILD_RELAY && !channel->replied;
}

void channel_data(struct channel *channel, uint16_t stream, struct reader bytes)
{
    if (stream != STREAM_IN || !bytes.left || bytes.left > channel->window || too_early(channel))
        return request_refuse(channel);
    channel->window -= (uint32_t)bytes.left;
    if (channel->role == ROLE_OWNER && channel->child && !channel->leaving)
        child_input(channel->child, bytes);
}

void channel_eof(struct channel *channel, uint16_t stream)
{
    struct child *child = channel->child;
    if (stream > STREAM_ERR || too_early(channel))
        request_refuse(channel);
    else if (channel->role != ROLE_OWNER || !child || channel->leaving)
        return;
    else if (stream == STREAM_IN) {
        child_input_end(child);
        if (child->kind == CHILD_OPERATION)
            helper_commit(child);
    }
    else if (child->terminal < 0) {
        channel->out[stream - 1].flowing = false;
        child_outlet_close(child, stream - 1u);
        child_push(child);
    }
}

void channel_credit(struct channel *channel, uint16_t stream, struct reader body)
{
    struct credit_message credit;
    if (message_read(body, &credit_shape, &credit) || stream < STREAM_OUT || stream > STREAM_ERR)
        return request_refuse(channel);
    struct flow *flow = &channel->out[stream - 1];
    if (credit.bytes > LIMIT_CREDIT - flow->credit)
        return request_refuse(channel);
    flow->credit += credit.bytes;
    if (channel->child) {
        if (channel->role == ROLE_OWNER)
            channel->child->out[stream - 1].taken = min_u64(channel->child->out[stream - 1].taken + credit.bytes, flow->at);
        child_push(channel->child);
    }
}

/* The end of an owner ends its child, unless that is a background command, or one that is kept. */
static bool must_die(const struct channel *channel)
{
    const struct child *child = channel->child;
    bool stays = child && (child->kept || child->flags & EXEC_BACKGROUND);
    return channel->role == ROLE_OWNER && child && !stays && child->state == CHILD_RUNNING;
}

void channel_leave(struct channel *channel, bool connected)
{
    struct child *child = channel->child;
    if (channel->leaving && connected)
        return;
    if (child && child->kind == CHILD_RELAY)
        relay_end(child, 0);
    if (child && connected && channel->role == ROLE_OWNER && child->state == CHILD_ENDED)
        child->kept = false;
    if (must_die(channel)) {
        for (unsigned i = 0; i < 2; i++) {
            channel->out[i].flowing = false;
            child_outlet_close(child, i);
        }
        if (child->kind == CHILD_OPERATION)
            helper_give_up(child); /* before its input ends: an end must not look like a commit */
        watch_close(&child->agent->loop, &child->in.watch);
        channel->leaving = true;
        if (child->kind == CHILD_COMMAND)
            (void)kill_start(child);
        if (connected)
            return; /* the final frame follows when the child is dead */
    }
    if (connected)
        channel_close(channel);
    else
        channel_free(channel);
}
