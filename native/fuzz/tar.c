/* Any bytes as an archive. Members have names that fit; what is read is written again, and is then read as the same. */
#include "../kernel.h"
#include "../tar.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

struct stream {
    unsigned char bytes[1 << 16];
    size_t used, at;
    int end; /* what reading says there */
};

static int stream_read(void *context, void *to, size_t size)
{
    struct stream *stream = context;
    size_t part = min_size(size, stream->used - stream->at);
    memcpy(to, stream->bytes + stream->at, part);
    stream->at += part;
    return part ? (int)part : stream->end;
}

static int stream_write(void *context, const void *from, size_t size)
{
    struct stream *stream = context;
    if (size > sizeof stream->bytes - stream->used)
        return -ENOSPC;
    memcpy(stream->bytes + stream->used, from, size);
    stream->used += size;
    return 0;
}

/* Checks members that no archive can hold, and a sink without room. */
static void refused(struct tar_member member)
{
    static struct stream stream;
    static char path[TAR_PATH + 1];
    static const unsigned char more[] = "9 a=bcde\n";
    memset(path, 'p', TAR_PATH);
    struct tar_member without = member, longer = member, larger = member, target = member;
    without.path = "";
    longer.path = target.target = path;
    larger.type = TAR_FILE;
    larger.size = UINT64_MAX;
    target.type = TAR_LINK;
    for (size_t room = 0; room < 4; room++) {
        stream.used = sizeof stream.bytes - room * TAR_BLOCK;
        (void)tar_put(stream_write, &stream, &member, room % 2 ? UINT32_MAX : 0, 0);
        member.more = reader_of(more, sizeof more - 1);
    }
    must(tar_put(stream_write, &stream, &without, 0, 0) == -EINVAL && tar_put(stream_write, &stream, &longer, 0, 0) == -EINVAL);
    must(tar_put(stream_write, &stream, &larger, 0, 0) == -EINVAL && tar_put(stream_write, &stream, &target, 0, 0) == -EINVAL);
    struct writer none = writer_of(path, 3);
    must(tar_record_put(&none, "key", reader_of(more, 3)) == -ENOBUFS);
    must(tar_pad(stream_write, &stream, 1) == -ENOSPC && !tar_pad(stream_write, &stream, 0) && tar_finish(stream_write, &stream));
}

static void again(const struct tar_member *member, uint32_t uid, uint32_t gid)
{
    static struct stream stream;
    static struct tar_reader tar;
    struct tar_member read;
    bool link = member->type == TAR_LINK || member->type == TAR_HARD_LINK;
    stream.used = stream.at = 0;
    must(!tar_put(stream_write, &stream, member, uid, gid));
    tar_start(&tar, stream_read, &stream);
    must(tar_next(&tar, &read) == 1);
    must(read.type == member->type && read.mode == member->mode && read.size == member->size);
    must(read.modified == member->modified && !strcmp(read.path, member->path));
    must(!link || !strcmp(read.target, member->target));
}

static void take(const unsigned char *bytes, size_t size, bool whole, int end)
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
    stream.end = end;
    tar_start(&tar, stream_read, &stream);
    tar.whole = whole;
    while ((result = tar_next(&tar, &member)) > 0) {
        must(*member.path && strlen(member.path) < TAR_PATH && strlen(member.target) < TAR_PATH);
        struct reader records = tar.records;
        while (whole && tar_record_next(&records, &key, &value) > 0)
            must(key.left && key.left + value.left < tar.records.left);
        must(!whole || !records.left);
        if (!whole && (member.type != TAR_FILE || member.path[strlen(member.path) - 1] != '/'))
            again(&member, UINT32_MAX, 0), again(&member, 0, UINT32_MAX), refused(member);
        if (member.mode & 1) /* what is left is passed over */
            continue;
        while ((result = tar_data(&tar, data, sizeof data)) > 0)
            ;
        if (result < 0)
            break;
    }
    must(!result || result == end || (result == -EBADMSG && tar.problem && strlen(tar.problem) < 32));
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    if (size > sizeof((struct stream *)0)->bytes)
        return 0;
    take(bytes, size, false, 0);
    take(bytes, size, true, 0);
    take(bytes, size, true, -EIO);
    return 0;
}
