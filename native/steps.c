#include "io.h"
#include "jail.h"

void steps_restart(struct steps *steps)
{
    steps->count = 0;
    steps->last = loop_now();
}

void steps_report(const struct steps *steps, const char *failed, int error, const int *fds, size_t count)
{
    unsigned char bytes[1024], names[512];
    struct writer body = writer_of(bytes, sizeof bytes), text = writer_of(names, sizeof names);
    for (size_t i = 0; i < steps->count; i++)
        (void)put_bytes(&text, steps->names[i], strlen(steps->names[i]) + 1);
    struct report_message report = {
        .failed = !!failed,
        .errno = (uint32_t)-error,
        .step = reader_of(failed, failed ? strlen(failed) : 0),
        .steps = reader_of(names, text.used),
        .took = reader_of(steps->took, steps->count * sizeof *steps->took),
    };
    must(!message_put(&body, &report_shape, &report));
    if (send_fds(SUPERVISOR, body.base, body.used, fds, count) < 0)
        sys_exit(1); /* the supervisor sees that, and would wait for a report that was lost */
}

void step(struct steps *steps, const char *name, int result)
{
    uint64_t now = loop_now();
    struct reader fault = steps->fault;
    size_t size = strlen(name);
    bool named = fault.left >= size && !memcmp(fault.at, name, size);
    if (named && fault.left == size + 1 && fault.at[size] == '!')
        sys_exit(137); /* as by SIGKILL, which pid 1 cannot send to itself */
    if (result < 0 || (named && fault.left == size)) {
        steps_report(steps, name, result < 0 ? result : 0, NULL, 0);
        sys_exit(1);
    }
    must(steps->count < MOST_STEPS);
    steps->names[steps->count] = name;
    steps->took[steps->count++] = now - steps->last;
    steps->last = now;
}
