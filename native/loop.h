/* One epoll, timers at absolute times. One event a turn: a handler may close, free or stop anything. */
#pragma once

#include "tiny.h"

struct loop;

/* A descriptor and who is called when it is ready. The owner of the watch owns the descriptor. */
struct watch {
    int fd; /* -1: none */
    uint32_t events;
    void (*ready)(struct watch *, uint32_t events);
};

struct timer {
    uint64_t at;
    bool set;
    struct timer *next;
    void (*fire)(struct timer *);
};

struct loop {
    int epoll;
    bool stopped;
    struct timer *timers; /* the next first */
    void (*turned)(struct loop *); /* before each wait */
};

int loop_open(struct loop *);
/* Until `stopped`. */
void loop_run(struct loop *);

/* Waits for `events`; 0: for none, and the kernel forgets the descriptor, as EPOLLHUP would come all the same. */
int watch_for(struct loop *, struct watch *, uint32_t events);
/* Forgets and closes it. */
void watch_close(struct loop *, struct watch *);

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t loop_now(void);
void timer_set(struct loop *, struct timer *, uint64_t at);
void timer_clear(struct loop *, struct timer *);
