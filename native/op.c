/* The life of an operation's child, and the table of operations. */
#include "op.h"

#include "io.h"
#include "message.h"
#include "ops.h"
#include "schema.h"
#include "sys.h"

static int send_packet(struct op *op, uint16_t kind, const struct writer *body)
{
    struct iovec parts[2] = {{&kind, sizeof kind}, {body ? body->base : NULL, body ? body->used : 0}};
    struct message message = {.parts = parts, .part_count = 2};
    long sent = CALL3(sendmsg, op->control, P(&message), MSG_NOSIGNAL);
    return sent < 0 ? (int)sent : 0;
}

int op_reply(struct op *op, const struct writer *body)
{
    must(!op->replied);
    op->replied = true;
    return send_packet(op, KIND_REPLY, body);
}

int op_exit(struct op *op, const struct writer *body)
{
    int result = op->replied ? 0 : op_reply(op, NULL);
    return result ? result : send_packet(op, KIND_EXIT, body);
}

int op_write(struct op *op, const void *bytes, size_t size)
{
    int result = op->replied ? 0 : op_reply(op, NULL);
    return result ? result : write_all(op->out, bytes, size);
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

static void send_error(struct op *op, int error)
{
    unsigned char bytes[256];
    struct writer body = writer_of(bytes, sizeof bytes);
    const char *step = op->step ? op->step : "operation";
    struct error_message message = {.errno = (uint32_t)-error, .step = reader_of(step, strlen(step))};
    if (!message_put(&body, &error_shape, &message))
        (void)send_packet(op, KIND_ERROR, &body);
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

_Noreturn void op_run(const struct op_entry *entry, struct reader request)
{
    struct op op = {.request = request, .in = OP_INPUT, .out = OP_OUTPUT, .control = OP_CONTROL};
    int result = arena_open(&op.arena, OP_MEMORY);
    if (!(entry->streams & OP_IN))
        op.in = -1;
    if (!(entry->streams & OP_OUT))
        op.out = -1;
    limit_to(entry);
    if (!result)
        result = entry->run(&op);
    if (result < 0)
        send_error(&op, result);
    sys_exit(0);
}

/* What shows that an operation works, and is the smallest of them. */
static int op_echo(struct op *op)
{
    unsigned char *bytes = arena_take(&op->arena, LIMIT_BODY);
    int got = 0;
    op->step = "echo";
    if (!bytes)
        return -ENOMEM;
    while ((got = op_read(op, bytes, LIMIT_BODY)) > 0)
        TRY(op_write(op, bytes, (size_t)got));
    return got < 0 ? got : op_committed(op);
}

static const struct op_entry OPERATIONS[] = {
    {OP_ECHO, OP_IN | OP_OUT, 3600, op_echo},
    {OP_STAT, OP_NONE, 60, serve_stat},
    {OP_MKDIR, OP_NONE, 60, serve_mkdir},
    {OP_SET, OP_NONE, 60, serve_set},
    {OP_REMOVE, OP_NONE, 3600, serve_remove},
    {OP_MOVE, OP_NONE, 3600, serve_move},
    {OP_COPY, OP_NONE, 3600, serve_copy},
    {OP_LIST, OP_OUT, 3600, serve_list},
    {OP_FIND, OP_OUT, 3600, serve_find},
    {OP_GREP, OP_OUT, 3600, serve_grep},
    {OP_READ, OP_OUT, 3600, serve_read},
    {OP_WRITE, OP_IN, 3600, serve_write},
    {OP_UPLOAD, OP_IN, 3600, serve_upload},
    {OP_DOWNLOAD, OP_OUT, 3600, serve_download},
    {OP_WATCH, OP_OUT, UINT16_MAX, serve_watch},
};

const struct op_entry *op_find(uint16_t number)
{
    for (size_t i = 0; i < ARRAY_SIZE(OPERATIONS); i++)
        if (OPERATIONS[i].number == number)
            return &OPERATIONS[i];
    return NULL;
}
