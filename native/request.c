/* The common part of requests with an immediate answer. */
#include "agent.h"

bool request_perform(const struct request *requests, size_t count, unsigned state, struct channel *channel, struct frame *frame)
{
    _Alignas(16) unsigned char message[256];
    const struct request *request = requests;
    while (request < requests + count && request->number != frame->code)
        request++;
    if (request == requests + count || (request->states && !(request->states & state)))
        return false;
    if (request->shape && message_read(frame->body, request->shape, message))
        request_refuse(channel);
    else
        request->perform(channel, message, frame);
    return true;
}

void request_refuse(struct channel *channel)
{
    channel->connection->wire.broken = true;
}

void request_answer(struct channel *channel, int result, const char *step)
{
    if (result < 0)
        return channel_error(channel, result, step);
    channel_reply_bytes(channel, NULL, 0);
    channel_close(channel);
}

void request_reply(struct channel *channel, const struct shape *shape, const void *message)
{
    channel_reply(channel, shape, message);
    channel_close(channel);
}
