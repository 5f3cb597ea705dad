/* A jail from the clone on (spawner.c makes the setup, jail.c is pid 1 in it), and its steps. */
#pragma once

#include "init.h"

enum { MOST_STEPS = 8, USER = 0, ROOT = 1 };

/* Open descriptors of pid 1. The supervisor's stream is the spawner's until this is a jail. No command ever sees the
 * writable mount of /proc. Then come the sockets of pid 1 itself, of `user`, and in a whole setup of `root`. */
enum { SUPERVISOR = 7, WRITABLE_PROC = 8, FIRST_LISTENER = 9 };

/* Steps of the setup, for measurements and for faults in tests. */
struct steps {
    struct reader fault;
    uint64_t last;
    size_t count;
    const char *names[MOST_STEPS];
    uint64_t took[MOST_STEPS];
};

/* Records a step with its result. After a failure it reports and ends the process. So it does in a test whose `fault`
 * names this step; with `!` behind the name it ends without a report. */
void step(struct steps *, const char *name, int result);
void steps_restart(struct steps *);
/* With descriptors for the supervisor. `failed`: the step, or NULL. */
void steps_report(const struct steps *, const char *failed, int error, const int *fds, size_t count);

/* Its file system (stage.c). */

/* Descriptors of a spare: where the root is attached, and mounts for it. The other three are closed when these are there. */
struct stage {
    int root, dev, proc, dev_place, proc_place, told;
};

/* Before it takes ids of a sandbox. 0 or -errno. */
int stage_open(const struct setup_message *, struct stage *);
int stage_mount(const struct setup_message *, struct stage *);
/* Makes the plan's mounts the file system, in steps. */
void stage_attach(struct stage *, const struct plan_message *, const int *fds, size_t count, struct steps *);

/* In a prepared setup: becomes a spare, and then the planned sandbox. */
_Noreturn void jail_run(struct agent *child, const struct setup_message *, const struct stage *, const struct steps *);
/* Serves SUPERVISOR: clones. Returns in no child. */
int spawner_run(struct agent *child);
