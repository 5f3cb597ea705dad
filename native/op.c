/* The life of an operation's child, and the table of operations. */
#include "op.h"
#include "io.h"
#include "sys.h"

static int send_packet(struct op *op, uint16_t kind, const struct shape *shape, const void *message)
{
    unsigned char bytes[3 * LIMIT_PATH];
    struct writer body = writer_of(bytes, sizeof bytes);
    TRY(shape ? message_put(&body, shape, message) : 0);
    struct iovec parts[2] = {{&kind, sizeof kind}, {bytes, body.used}};
    struct message packet = {.parts = parts, .part_count = 2};
    TRY(CALL3(sendmsg, op->control, P(&packet), MSG_NOSIGNAL));
    return 0;
}

int op_reply(struct op *op, const struct shape *shape, const void *message)
{
    must(!op->replied);
    op->replied = true;
    return send_packet(op, KIND_REPLY, shape, message);
}

int op_exit(struct op *op, const struct shape *shape, const void *message)
{
    TRY(op_flush(op));
    return send_packet(op, KIND_EXIT, shape, message);
}

int op_flush(struct op *op)
{
    size_t size = op->waiting;
    op->waiting = 0;
    TRY(op->replied ? 0 : op_reply(op, NULL, NULL));
    return write_all(op->out, op->buffer, size);
}

int op_write(struct op *op, const void *bytes, size_t size)
{
    const unsigned char *from = bytes;
    while (size) {
        TRY(op->waiting == sizeof op->buffer ? op_flush(op) : 0);
        size_t part = min_size(size, sizeof op->buffer - op->waiting);
        memcpy(op->buffer + op->waiting, from, part);
        op->waiting += part;
        from += part;
        size -= part;
    }
    return 0;
}

long op_fill(struct op *op, int fd, uint64_t most)
{
    TRY(op->waiting == sizeof op->buffer ? op_flush(op) : 0);
    long got = sys_read(fd, op->buffer + op->waiting, (size_t)min_u64(most, sizeof op->buffer - op->waiting));
    op->waiting += got > 0 ? (size_t)got : 0;
    return got;
}

int op_read(struct op *op, void *to, size_t size)
{
    return (int)sys_read(op->in, to, min_size(size, INT32_MAX));
}

int op_committed(struct op *op)
{
    char said;
    return sys_read(op->control, &said, 1) == 1 && said == 'C' ? 0 : -ECANCELED;
}

static void limit_to(const struct op_entry *entry)
{
    struct rlimit cpu = {entry->cpu_seconds, entry->cpu_seconds}, none = {0, 0};
    (void)sys_prlimit(0, RLIMIT_CPU, &cpu, NULL);
    (void)sys_prlimit(0, RLIMIT_CORE, &none, NULL);
#ifndef GUEST_HOSTED /* the sanitizers map memory whenever they like */
    (void)sys_prlimit(0, RLIMIT_DATA, &none, NULL); /* the arena is mapped: no more is needed */
#endif
}

int op_serve(const struct op_entry *entry, struct op *op, struct reader request)
{
    _Alignas(16) unsigned char message[256];
    TRY(entry->shape ? message_read(request, entry->shape, message) : 0);
    op->request = message;
    TRY(entry->run(op));
    return op->waiting ? op_flush(op) : 0;
}

_Noreturn void op_run(const struct op_entry *entry, struct reader request)
{
    static struct op op; /* its pages cost nothing before they are used */
    int result = arena_open(&op.arena, OP_MEMORY);
    op.control = OP_CONTROL;
    op.in = entry->streams & OP_IN ? OP_INPUT : -1;
    op.out = entry->streams & OP_OUT ? OP_OUTPUT : -1;
    limit_to(entry);
    if (!result)
        result = op_serve(entry, &op, request);
    if (result < 0) {
        struct error_message error = {.errno = (uint32_t)-result, .step = text_of(op.step ? op.step : "operation")};
        (void)send_packet(&op, KIND_ERROR, &error_shape, &error);
    }
    sys_exit(0);
}

/* The smallest operation. It shows that operations work. */
static int op_echo(struct op *op)
{
    op->step = "echo";
    while (TRY(op_fill(op, op->in, OP_BUFFER)))
        TRY(op_flush(op));
    return op_committed(op);
}

static const struct op_entry OPERATIONS[] = {
    {OP_ECHO, OP_IN | OP_OUT, 3600, NULL, op_echo},
    {OP_STAT, OP_NONE, 60, &stat_shape, serve_stat},
    {OP_MKDIR, OP_NONE, 60, &mkdir_shape, serve_mkdir},
    {OP_SET, OP_NONE, 60, &set_shape, serve_set},
    {OP_REMOVE, OP_NONE, 3600, &remove_shape, serve_remove},
    {OP_MOVE, OP_NONE, 3600, &move_shape, serve_move},
    {OP_COPY, OP_NONE, 3600, &copy_shape, serve_copy},
    {OP_LIST, OP_OUT, 3600, &list_shape, serve_list},
    {OP_FIND, OP_OUT, 3600, &find_shape, serve_find},
    {OP_GREP, OP_OUT, 3600, &grep_shape, serve_grep},
    {OP_READ, OP_OUT, 3600, &read_shape, serve_read},
    {OP_WRITE, OP_IN, 3600, &write_shape, serve_write},
    {OP_UPLOAD, OP_IN, 3600, &upload_shape, serve_upload},
    {OP_DOWNLOAD, OP_OUT, 3600, &download_shape, serve_download},
    {OP_WATCH, OP_OUT, UINT16_MAX, &watch_shape, serve_watch},
};

const struct op_entry *op_find(uint16_t number)
{
    for (size_t i = 0; i < ARRAY_SIZE(OPERATIONS); i++)
        if (OPERATIONS[i].number == number)
            return &OPERATIONS[i];
    return NULL;
}
