/* What requests have in common whose answer is known at once. */
#include "agent.h"
#include "message.h"

bool request_read(struct channel *channel, struct reader body, const struct shape *shape, void *to)
{
    bool good = !message_read(body, shape, to);
    channel->connection->wire.broken |= !good;
    return good;
}

void request_answer(struct channel *channel, int result, const char *step)
{
    if (result)
        return channel_error(channel, result, step);
    channel_reply_bytes(channel, NULL, 0);
    channel_close(channel);
}

void request_reply(struct channel *channel, const struct shape *shape, const void *message)
{
    channel_reply(channel, shape, message);
    channel_close(channel);
}
