/* Any bytes as an archive. Members have names that fit; what is read is written again, and is then read as the same. */
#include "../kernel.h"
#include "../tar.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

struct stream {
    unsigned char bytes[1 << 16];
    size_t used, at;
};

static int stream_read(void *context, void *to, size_t size)
{
    struct stream *stream = context;
    size_t part = min_size(size, stream->used - stream->at);
    memcpy(to, stream->bytes + stream->at, part);
    stream->at += part;
    return (int)part;
}

static int stream_write(void *context, const void *from, size_t size)
{
    struct stream *stream = context;
    must(size <= sizeof stream->bytes - stream->used);
    memcpy(stream->bytes + stream->used, from, size);
    stream->used += size;
    return 0;
}

static void again(const struct tar_member *member)
{
    static struct stream stream;
    static struct tar_reader tar;
    struct tar_member read;
    bool link = member->type == TAR_LINK || member->type == TAR_HARD_LINK;
    stream.used = stream.at = 0;
    must(!tar_put(stream_write, &stream, member, UINT32_MAX, 0));
    tar_start(&tar, stream_read, &stream);
    must(tar_next(&tar, &read) == 1);
    must(read.type == member->type && read.mode == member->mode && read.size == member->size);
    must(read.modified == member->modified && !strcmp(read.path, member->path));
    must(!link || !strcmp(read.target, member->target));
}

static void take(const unsigned char *bytes, size_t size, bool whole)
{
    static struct stream stream;
    static struct tar_reader tar;
    static char data[1 << 12];
    struct tar_member member;
    struct reader key, value;
    int result;
    memcpy(stream.bytes, bytes, size);
    stream.used = size;
    stream.at = 0;
    tar_start(&tar, stream_read, &stream);
    tar.whole = whole;
    while ((result = tar_next(&tar, &member)) > 0) {
        must(*member.path && strlen(member.path) < TAR_PATH && strlen(member.target) < TAR_PATH);
        struct reader said = tar.said;
        while (whole && tar_record_next(&said, &key, &value) > 0)
            must(key.left && key.left + value.left < tar.said.left);
        must(!whole || !said.left);
        if (!whole && (member.type != TAR_FILE || member.path[strlen(member.path) - 1] != '/'))
            again(&member);
        while ((result = tar_data(&tar, data, sizeof data)) > 0)
            ;
        if (result < 0)
            break;
    }
    must(!result || (result == -EBADMSG && tar.problem && strlen(tar.problem) < 32));
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    if (size > sizeof((struct stream *)0)->bytes)
        return 0;
    take(bytes, size, false);
    take(bytes, size, true);
    return 0;
}
