/* Pauses without a supervisor: pid 1 stops all but itself, and enforces a deadline. That is the one of the retention,
 * while the time to live doesn't run.
 *
 * SIGSTOP to all reaches every process in the namespace at once, also during a fork: no process remains that could
 * resume another. Processes that had stopped before resume with the others. */
#include "init.h"
#include "process.h"

static const uint64_t SECOND = 1000000000u, STOP_PATIENCE = 5000000000u, FIRST = 500000u, LONGEST = 100000000u;

/* A caller of vfork(2) waits in the kernel, without stopping, until the child has executed. */
static bool children_go_on(struct process *all, size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if (!all[i].ours || !all[i].blocked)
            continue;
        for (size_t k = 0; k < count; k++)
            if (all[k].parent == all[i].pid) {
                (void)sys_kill(all[k].pid, SIGCONT);
                any = true;
            }
    }
    return any;
}

/* Whether one of them runs; it is one of `ours` then. */
static bool any_runs(struct process *all, size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        all[i].ours = !process_stands(&all[i]);
        any |= all[i].ours;
    }
    return any;
}

/* Returns when no other process runs. -ETIMEDOUT, after resuming all, if that takes too long. */
static int stop(void)
{
    uint64_t end = loop_now() + STOP_PATIENCE, pause = FIRST;
    struct process *all = sys_map(MOST_PROCESSES * sizeof *all);
    int result = 0;
    if (!all)
        return -ENOMEM;
    for (;;) {
        (void)sys_kill(-1, SIGSTOP);
        sys_sleep(pause);
        int count = process_list(all);
        if (count >= 0 && !any_runs(all, (size_t)count))
            break;
        if (loop_now() > end) {
            (void)sys_kill(-1, SIGCONT);
            result = -ETIMEDOUT;
            break;
        }
        if (count > 0 && children_go_on(all, (size_t)count)) {
            sys_sleep(pause);
            pause = min_u64(2 * pause, LONGEST);
        }
    }
    sys_unmap(all, MOST_PROCESSES * sizeof *all);
    return result;
}

bool pause_stands(const struct init *init)
{
    return init->paused || init_waits(init, WAIT_HOLD);
}

static void slumber(struct timer *timer);

/* Restarts its idle time, if it has any, runs, and no caller keeps it awake. */
void pause_settle(struct init *init)
{
    timer_clear(&init->agent.loop, &init->idle_timer);
    init->idle_timer.fire = slumber;
    if (init->idle && !init->paused && !init_waits(init, WAIT_AWAKE))
        timer_set(&init->agent.loop, &init->idle_timer, loop_now() + init->idle);
}

static void tell(struct init *init)
{
    for (size_t i = 0; i < WAITS; i++) {
        struct wait *wait = &init->waits[i];
        if (!wait->channel || wait->kind != WAIT_PAUSE_CLOCK || wait->known == init->paused)
            continue;
        struct channel *channel = wait->channel;
        struct pause_clock_reply_message reply = {
            .paused = init->paused, .left = init->paused ? init->left : UINT64_MAX, .deadline = init->deadline};
        request_reply(channel, &pause_clock_reply_shape, &reply);
    }
}

/* Pauses all until a resume. A caller that keeps it awake does so again afterwards. */
static int pause_all(struct init *init)
{
    uint64_t now;
    int result = pause_stands(init) ? 0 : stop();
    if (result || init->paused)
        return result;
    now = sys_now(CLOCK_BOOTTIME);
    init->paused = true;
    init->left = init->deadline > now ? init->deadline - now : 0;
    init_set_deadline(init, now + init->retention);
    tell(init);
    return 0;
}

static void resume(struct init *init)
{
    if (!init->paused)
        return;
    init->paused = false;
    init_set_deadline(init, sys_now(CLOCK_BOOTTIME) + init->left);
    if (!pause_stands(init))
        init_go_on(init);
    pause_settle(init);
    tell(init);
}

static void slumber(struct timer *timer)
{
    struct init *init = CONTAINER_OF(timer, struct init, idle_timer);
    if (pause_all(init)) /* one of its processes did not stop in time: again when its time has come again */
        pause_settle(init);
}

static void let_it_go(struct init *init)
{
    if (init_waits(init, WAIT_HOLD))
        return;
    if (init_dismiss(init) && init->paused)
        (void)stop(); /* who was just ended runs for a moment more, and would be seen to */
    if (!init->paused)
        init_go_on(init);
}

void pause_let_go(struct wait *wait)
{
    if (wait->kind == WAIT_HOLD)
        let_it_go(wait->init);
    else if (wait->kind == WAIT_AWAKE)
        pause_settle(wait->init);
}

static void time_over(struct timer *timer)
{
    channel_close(CONTAINER_OF(timer, struct wait, timer)->channel);
}

void pause_hold(struct channel *channel, const void *message, struct frame *frame)
{
    const struct hold_message *request = message;
    struct init *init = agent_of(channel)->init;
    int result = !request->seconds || request->seconds > LIMIT_HOLD ? -EINVAL : pause_stands(init) ? 0 : stop();
    if (result)
        return channel_error(channel, result, "hold");
    struct wait *wait = init_wait(channel, WAIT_HOLD);
    if (!wait)
        return let_it_go(init);
    wait->timer.fire = time_over;
    timer_set(&init->agent.loop, &wait->timer, loop_now() + request->seconds * SECOND);
    channel_reply_bytes(channel, NULL, 0);
}

static void tell_times(struct channel *channel)
{
    const struct init *init = agent_of(channel)->init;
    struct times_reply_message reply = {init->paused ? init->left : UINT64_MAX, init->deadline};
    channel_reply(channel, &times_reply_shape, &reply);
}

void pause_keep_awake(struct channel *channel, const void *nothing, struct frame *frame)
{
    struct init *init = agent_of(channel)->init;
    if (!init_wait(channel, WAIT_AWAKE))
        return;
    pause_settle(init);
    resume(init);
    tell_times(channel);
}

void pause_tell_clock(struct channel *channel, const void *message, struct frame *frame)
{
    const struct pause_clock_message *request = message;
    if (request->paused > 1)
        return request_refuse(channel);
    struct wait *wait = init_wait(channel, WAIT_PAUSE_CLOCK);
    if (!wait)
        return;
    wait->known = request->paused;
    tell(wait->init);
}

/* PAUSE, RESUME, TIMES. */
void pause_turn(struct channel *channel, const void *nothing, struct frame *frame)
{
    struct init *init = agent_of(channel)->init;
    int result = frame->code == OP_PAUSE ? pause_all(init) : 0;
    if (frame->code == OP_RESUME)
        resume(init);
    if (result)
        return channel_error(channel, result, "stop");
    tell_times(channel);
    channel_close(channel);
}
