/* Pid 1 of a container, a jail (jail.c), a virtual machine (machine.c) or gVisor's sentry (init_trunk.c): it starts an agent for each identity, reaps,
 * holds the deadline. It executes nothing. */
#pragma once

#include "agent.h"

/* The socket on which the host waits with pid 1's orders. Programs inside see the directory, and can't write it. */
#define BIRTH_SOCKET "/.paddock-host/birth.sock"

struct identity {
    struct init *init;
    char name[LIMIT_NAME + 1];
    size_t name_size; /* 0: free */
    uint32_t flags;   /* IDENTITY_* */
    uint32_t uid, gid;
    uint32_t groups[64];
    size_t group_count;
    unsigned char *filter; /* for seccomp(2); NULL: none */
    size_t filter_size;
    struct watch listener; /* watched while no agent serves it */
    int to_agent;          /* behind a trunk: pid 1 sends connections on it to the agent's listener */
    int pid;               /* of the agent; 0: none runs */
    bool dismissed;        /* its end is our wish */
    bool later;            /* a caller came while all stand still */
    bool clearing;         /* paddock is ending its remains, at most until `patience` */
    uint64_t patience;
    uint64_t started;
    uint64_t pause; /* before the next one, as this one died at once */
    int last_pid, last_status;
    struct timer timer; /* what comes next: of one that is stopped, of what one has left behind, of the next one */
};

enum wait_kind { WAIT_HOLD, WAIT_AWAKE, WAIT_PAUSE_CLOCK, WAIT_LOST };
enum { WAITS = 64 };

/* A channel of the host's that stays open. */
struct wait {
    struct init *init;
    struct channel *channel; /* NULL: free */
    enum wait_kind kind;
    bool known;                /* of PAUSE_CLOCK: the host believes that it is paused */
    struct identity *identity; /* of LOST */
    int pid;
    struct timer timer;
};

struct init {
    struct agent agent; /* its connections and its loop: it isn't an agent itself */
    struct agent *child; /* untouched: a child of ours becomes it */
    bool begun;
    bool trunk;   /* its host speaks over one port: it makes all sockets, and gets no descriptors */
    bool machine; /* and the kernel is its own */
    int relay;    /* a helper that no request may end; 0: none */
    struct identity identities[LIMIT_IDENTITIES];
    struct wait waits[WAITS];
    uint64_t deadline; /* CLOCK_BOOTTIME */
    struct timer deadline_timer;
    uint64_t grace; /* so long after the deadline another one is still heard */
    bool overdue;
    bool frail;   /* it ends with the first of its agents that does */
    bool in_jail; /* jail.c */

    /* pause.c */
    bool paused;
    uint64_t left; /* of the time to live, while it is paused */
    uint64_t idle; /* 0: it is never paused by itself */
    uint64_t retention;
    struct timer idle_timer;
};

/* Serves until the deadline; returns what kept it from that. In a child it does not return: that is an agent. */
int init_run(struct agent *child);
/* Prepares to receive the orders, before its loop runs. 0 or -errno. */
int init_prepare(struct agent *child, struct init **to);
/* NULL: there is none. */
struct identity *init_find(struct init *, struct reader name);
/* A descriptor above 2, of every agent's. */
int open_null(void);
/* An identity that has all but what the life of its agents is about. */
void init_add(struct init *, struct identity *);
/* For the first connection: the agent accepts it. */
void init_listen(struct identity *);
/* Soft and hard limits of this process: none is above the hard one that there is. */
int init_limit(struct reader limits);
/* Becomes an agent in a child of pid 1: closes the descriptors of pid 1, and serves. */
_Noreturn void init_serve(struct agent *, int listener, int score);

/* The host speaks over one port (init_trunk.c). */

/* The end of the program's path when it is pid 1 behind gVisor's sentry. */
#define SENTRY_NAME "/sentry"
/* Serves; returns what kept it from that. */
int sentry_run(struct agent *child);
/* In a child that becomes an agent. */
int sentry_shed(void);
/* Serves connections over the port from now on. 0 or -errno. */
int init_trunk_begin(struct init *, int reader, int writer);
/* Returns an agent's listener: it receives the connections that pid 1 sends on `to_agent`. A descriptor or -errno. */
int init_trunk_listener(int *to_agent);

/* Of pid 1 of a jail (jail.c). */

_Noreturn void jail_become_agent(const struct identity *);
/* Handles the supervisor's messages so far. */
void jail_look(struct init *);

/* False: it isn't an order, or not allowed in this state. */
bool init_perform(struct channel *, struct frame *);
void init_died(struct init *, int pid, int status);
void init_stopped(struct init *, int pid);
/* The host has closed a channel that waits, or the channel has sent its final frame. */
void init_let_go(struct wait *);

void init_set_deadline(struct init *, uint64_t deadline);
/* NULL, and the channel has its error: there are too many. */
struct wait *init_wait(struct channel *, enum wait_kind);
bool init_waits(const struct init *, enum wait_kind);
/* Those that attend end with the hold. */
bool init_dismiss(struct init *);
/* Starts the agents with calls in the meantime. */
void init_go_on(struct init *);

/* RENEW (renewal.c). */
request_function renew_perform;

/* Standing still (pause.c). */

/* Restarts the idle time. */
void pause_settle(struct init *);
bool pause_stands(const struct init *);
request_function pause_hold, pause_keep_awake, pause_tell_clock, pause_turn;
void pause_let_go(struct wait *);
