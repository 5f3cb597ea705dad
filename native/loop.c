#include "loop.h"
#include "sys.h"

enum { MILLISECOND = 1000000, LONGEST_WAIT = 1000000 };

int loop_open(struct loop *loop)
{
    loop->stopped = false;
    loop->timers = NULL;
    loop->epoll = (int)CALL1(epoll_create1, EPOLL_CLOEXEC);
    return loop->epoll < 0 ? loop->epoll : 0;
}

int watch_for(struct loop *loop, struct watch *watch, uint32_t events)
{
    struct epoll_event event = {events, (uint64_t)(uintptr_t)watch};
    int command = !events ? EPOLL_CTL_DEL : watch->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (watch->fd < 0 || watch->events == events)
        return 0;
    int result = sys_epoll_ctl(loop->epoll, command, watch->fd, &event);
    if (result >= 0)
        watch->events = events;
    return result;
}

void watch_close(struct loop *loop, struct watch *watch)
{
    (void)watch_for(loop, watch, 0); /* a forked child may hold the file: closing alone would leave it in the epoll */
    fd_close(&watch->fd);
}

uint64_t loop_now(void)
{
    return sys_now(CLOCK_MONOTONIC);
}

void timer_clear(struct loop *loop, struct timer *timer)
{
    if (!timer->set)
        return;
    struct timer **at = &loop->timers;
    while (*at != timer)
        at = &(*at)->next;
    *at = timer->next;
    timer->set = false;
}

void timer_set(struct loop *loop, struct timer *timer, uint64_t at)
{
    timer_clear(loop, timer);
    struct timer **place = &loop->timers;
    while (*place && (*place)->at <= at)
        place = &(*place)->next;
    timer->at = at;
    timer->next = *place;
    timer->set = true;
    *place = timer;
}

/* Milliseconds to the next timer, rounded up lest it be looked at too early, again and again. */
static int next_wait(struct loop *loop)
{
    if (!loop->timers)
        return -1;
    uint64_t now = loop_now();
    if (loop->timers->at <= now)
        return 0;
    return (int)min_u64((loop->timers->at - now + MILLISECOND - 1) / MILLISECOND, LONGEST_WAIT);
}

static void fire_timers(struct loop *loop)
{
    uint64_t now = loop_now();
    while (loop->timers && loop->timers->at <= now) {
        struct timer *timer = loop->timers;
        timer_clear(loop, timer);
        timer->fire(timer);
    }
}

void loop_run(struct loop *loop)
{
    for (;;) {
        struct epoll_event event;
        loop->turned(loop);
        if (loop->stopped)
            return;
        int count = sys_epoll_wait(loop->epoll, &event, 1, next_wait(loop));
        if (count == 1) {
            struct watch *watch = (struct watch *)(uintptr_t)event.data;
            watch->ready(watch, event.events);
        } else if (count < 0 && count != -EINTR) {
            must(count == -ENOMEM);
        }
        if (loop->timers)
            fire_timers(loop);
    }
}
