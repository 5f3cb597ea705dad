/* The agent's structures, and their tasks. All are in one `struct agent`, the only global.
 *
 *   connection (agent.c)  channels of one host, each with a number
 *   channel (channel.c)   the state of one request: frames to send, credit
 *   child (child.c)       a source of streams for channels: a command (command.c), a file operation (helper.c),
 *                         or a connection inside (relay.c)
 *
 * A child knows the channels that follow it. A channel knows its child and its connection. Freeing a channel removes
 * it from both. Tables have a fixed size: a full one is an error for the host. */
#pragma once

#include "op.h"
#include "ring.h"
#include "sys.h"
#include "wire.h"

struct agent;
struct child;
struct connection;
struct init;
struct wait;

/* channels */

enum role {
    ROLE_OWNER,    /* has started the child: a foreground command or an operation ends with it */
    ROLE_FOLLOWER, /* ATTACH */
    ROLE_KILLER,   /* KILL: waits until all are dead */
};

struct channel {
    uint32_t number; /* 0: free */
    enum role role;
    bool replied;
    bool exited;  /* EXIT is sent */
    bool leaving; /* the host has closed it; the final frame follows when the child is dead */
    struct connection *connection;
    struct child *child;
    struct channel *next; /* that follows the same child */
    struct wait *wait;    /* of pid 1's: what the host waits for, or holds with this channel */
    uint32_t window;      /* bytes that the host may still send on stream 0 */
    struct flow {
        bool flowing;
        uint32_t credit;
        uint64_t at;    /* offset of the next byte */
        uint64_t until; /* its end, also if more bytes come */
    } out[2];           /* streams 1 and 2 */
};

struct connection {
    struct wire wire; /* first: a watch of it is the connection */
    struct agent *agent;
    bool greeted;
    uint32_t latest; /* the highest number of a channel */
    struct channel channels[LIMIT_CHANNELS];
};

void channel_follow(struct channel *, struct child *, enum role);
/* The channel that has started `child`, until the host closes it. */
struct channel *channel_owner(struct child *);
/* Frees a channel after its last frame, or when the host has gone. */
void channel_free(struct channel *);
void channel_reply(struct channel *, const struct shape *, const void *message);
/* Sends an empty REPLY, or a given one. */
void channel_reply_bytes(struct channel *, const void *body, size_t size);
/* Frees it. */
void channel_error(struct channel *, int error, const char *step);
void channel_close(struct channel *);
/* Sends what there is, as far as credit and room go. May free it. */
void channel_push(struct channel *);
void channel_data(struct channel *, uint16_t stream, struct reader bytes);
void channel_eof(struct channel *, uint16_t stream);
void channel_credit(struct channel *, uint16_t stream, struct reader body);
/* The host closes this channel, or has hung up. */
void channel_leave(struct channel *, bool connected);

/* requests (request.c) */

typedef void request_function(struct channel *, const void *message, struct frame *);

struct request {
    uint16_t number;           /* OP_* of schema.h */
    const struct shape *shape; /* of its message; NULL: it has none */
    request_function *perform;
    unsigned states; /* in which it is allowed; 0: in all */
};

/* Reads the message and performs the one of these requests that the frame is. False: it is none. A message that isn't one
 * ends the connection. */
bool request_perform(const struct request *, size_t count, unsigned state, struct channel *, struct frame *);
/* It breaks the protocol. */
void request_refuse(struct channel *);
/* The final frame: an empty REPLY, or the error and the step that failed. */
void request_answer(struct channel *, int result, const char *step);
/* The same with a body. */
void request_reply(struct channel *, const struct shape *, const void *message);

/* children */

enum child_state { CHILD_FREE, CHILD_RUNNING, CHILD_ENDED };
enum child_kind { CHILD_COMMAND, CHILD_OPERATION, CHILD_RELAY };

struct outlet { /* what a child prints */
    struct watch watch;
    struct child *child;
    struct ring ring;
    uint64_t taken; /* bytes for which the owner has given credit: from here on a command's are held */
    bool cut;      /* the child has died: `left` more bytes, and no more */
    bool terminal; /* EIO is its end */
    size_t left;
};

struct inlet { /* what a child reads */
    struct watch watch;
    struct child *child;
    struct ring ring;
    uint32_t written; /* for which no credit has been given yet */
    bool ending;
    bool over; /* the host has said so */
};

/* A unix socket inside that relays its clients to the host. */
struct relay_socket {
    struct watch listener;
    struct agent *agent;
    size_t users; /* relays that await a caller or serve one; 0: free */
    struct unix_address address;
};

struct child {
    enum child_state state;
    enum child_kind kind;
    struct agent *agent;
    int pid; /* 0 once it is reaped */
    uint64_t started;
    struct outlet out[2];
    struct inlet in;
    struct channel *channels;
    struct exit_message ending;

    /* a command */
    uint32_t flags; /* EXEC_* */
    uint64_t number;
    uint64_t started_at; /* since 1970 */
    int terminal;        /* for its size; -1: none */
    int cgroup;          /* -1: none */
    uint64_t tag;        /* hard RLIMIT_RSS of all that it starts; 0: none */
    int killer;          /* pid of the helper that kills it; 0: none */
    bool kept;           /* like a background command it outlives its owner, until an owner closes its channel */
    bool killed;         /* that helper has ended, with this number of survivors */
    uint32_t survivors;
    uint64_t limit_hits[2]; /* how often processes had exceeded limits before it */
    struct timer timer;
    uint64_t time_left; /* 0: no deadline */
    uint64_t looked_at;
    char id[LIMIT_ID + 1];
    size_t shown_size;
    char shown[LIMIT_SHOWN];

    /* a file operation */
    const struct op_entry *op;
    struct watch control; /* what it says; of a relay: the socket that is being connected */

    /* a relay */
    int failure; /* -errno */
    int refusal; /* of the address that was tried first */
    unsigned attempts;
    uint16_t port;
    struct relay_socket *socket;
};

struct child *child_new(struct agent *, enum child_kind);
/* Streams of a new child. Descriptors have a new owner, also if it fails. */
int child_outlet(struct child *, unsigned index, int fd, size_t ring_size, bool terminal);
int child_inlet(struct child *, int fd);
void child_outlet_close(struct child *, unsigned index);
void child_input(struct child *, struct reader bytes);
void child_input_end(struct child *);
/* Handles its death: its outlets keep their present data, and its channels get the result. */
void child_died(struct child *, int wait_status);
/* Something has changed: sends, concludes, and reads on where there is room. */
void child_push(struct child *);
/* Frees the resources of an ended child without a follower. */
void child_release(struct child *);
bool child_over(const struct outlet *);

/* commands */

request_function command_exec, command_attach, command_list, command_signal, command_resize, command_keep, command_kill;
/* Reports its start, once. */
void command_reply(struct child *);
/* Memory and process limits of a virtual machine. Only a hint for people, because root inside can forge it. */
void limits_open(struct agent *);
void limits_count(const struct agent *, uint64_t counts[2]);
/* Returns a flag of ENDED: the limit exceeded since `before`. Commands that fail at the same time get the same. */
uint32_t limits_hit(const struct agent *, const uint64_t before[2]);
/* Starts a kill unless one is under way. 0 or -errno. */
int kill_start(struct child *);
/* Concludes a kill after the end of its helper and the reaping of all killed processes. */
void kill_conclude(struct child *);
/* Kills all descendants of this process. It returns when none is left, or after five seconds. */
void kill_below(void);
/* Does one round of the same for a process without an agent above; `agents` are their numbers. True: none is left. */
bool kill_orphans(const int *agents, size_t count);

/* file operations */

void helper_start(struct channel *, const struct op_entry *, struct frame *);
/* The host has said EOF on stream 0. */
void helper_commit(struct child *);
/* The host has closed its channel. */
void helper_give_up(struct child *);
/* The streams are at their end, and it is dead: its result, then the final frame. */
void helper_conclude(struct channel *);

/* connections inside */

request_function relay_connect, relay_accept, relay_hand;
/* Checks whether it is over, before its channel gets the result. */
void relay_look(struct child *);
/* Closes all that it has. Idempotent. */
void relay_end(struct child *, int failure);
/* The final frame of an ended relay. */
void relay_conclude(struct channel *);

/* Forks a child that doesn't execute. It has the given descriptors, from number 3 on, and dies with us. */
int fork_helper(const int *fds, size_t count);

/* programs */

struct program {
    char *const *argv;
    char *const *env;
    const char *cwd;
    int fds[3];
    bool terminal; /* descriptor 0 becomes the controlling one */
    bool identity;
    uint32_t uid, gid;
    const uint32_t *groups;
    size_t group_count;
    struct reader rlimits;
    uint64_t tag;
    unsigned umask;
    int cgroup;
};

/* pid, or -errno and `step`, which failed. */
int spawn(const struct program *, void *stack, size_t stack_size, const char **step);

/* the agent */

struct agent {
    struct loop loop;
    struct watch listener;
    struct watch signals;
    struct watch lifeline;
    struct init *init; /* pid 1: it starts agents and is none itself */
    bool alone; /* ends with its first connection */
    bool behind_trunk; /* pid 1 passes connections to its listener (init_trunk.c) */
    bool tells; /* which limit a failed command exceeded */
    bool thrifty; /* its commands fork only while there is memory (pressure.c) */
    struct timer pressure;
    int events[2]; /* what the kernel has counted: of memory, of processes; -1: nothing */
    int null;
    int oom_score; /* of this process; open since it was still allowed. -1: none */
    size_t usual_size;
    char usual[16]; /* what stood there */
    uint64_t next_number;
    uint64_t top_tag; /* tags are below; 0: the kernel has none */
    size_t rings; /* bytes of those of background commands */
    struct arena arena;
    void *stack; /* of a child until it executes */
    struct connection *connections[LIMIT_CONNECTIONS];
    struct child commands[LIMIT_COMMANDS];
    struct child helpers[LIMIT_HELPERS];
    struct child relays[LIMIT_RELAYS];
    struct relay_socket relay_sockets[LIMIT_RELAY_SOCKETS];
};

/* The descriptors from the starter. ENTRANCE: a listening socket, or one connection, whose end ends the agent.
 * LIFELINE: the agent ends with its hang-up. Without one, it dies with its parent. REPORT, with a lifeline: a parent
 * comes in between. It writes the agent's wait status there when none of the agent's processes is left. SCORE: the
 * process's own /proc/self/oom_score_adj, if it can't open that any more. */
enum { ENTRANCE = 3, LIFELINE = 4, REPORT = 5, SCORE = 6 };

enum { STACK_BYTES = 64 << 10, ARENA_BYTES = 20 << 20 };

/* Tags are so large that who takes the limit for one of memory finds it no limit at all (sort(1) does). */
#define TOP_TAG (1ull << 62)
#define TAG_NOISE (1ull << 56)

#ifdef GUEST_FAULTS
void fault_arm(struct reader words, const char *name);
#else
static inline void fault_arm(struct reader words, const char *name)
{
}
#endif

/* Returns in the child of this process, which is the agent then. 0 or -errno. */
int parent_make(void);

struct agent *agent_of(struct channel *);
/* A command has begun: looks at memory until none runs (pressure.c). */
void pressure_watch(struct agent *);
/* Blocks all signals, and none of them is ignored. Returns a descriptor that tells of them, or -errno. */
int signals_open(void);
/* Its loop, and signals. 0 or -errno. */
int agent_open(struct agent *);
/* Takes a connection, or a socket that listens. */
void agent_connect(struct agent *, int fd);
int agent_listen(struct agent *, int fd);
/* Serves descriptor 3 to its end. */
int agent_run(struct agent *);
