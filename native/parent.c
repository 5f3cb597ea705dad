/* The agent's parent, where no supervisor stands above it: at the level `process`. It ends what an agent that was killed
 * has left behind, and then reports how that one ended; lets a stopped one go on; and executes nothing.
 *
 *   the lifeline ends       the agent gets the news and ends by itself, or is killed
 *   the agent dies          all that is below this process is killed, then the report, then this process ends
 *   this process is killed  the agent's lifeline, a pipe that only this process holds, ends */
#include "agent.h"

static const uint64_t STANDS = 1000000000u, PATIENCE = 7;

/* Whether the agent is dead. One that its own commands have stopped (`kill -STOP -1`) goes on after a second. */
static bool reap(int agent, int *ending)
{
    bool dead = false;
    int status, pid;
    while ((pid = (int)CALL4(wait4, -1, P(&status), WNOHANG | WUNTRACED, 0)) > 0) {
        if (pid != agent)
            continue;
        if ((status & 0xff) == STOPPED) {
            sys_sleep(STANDS);
            (void)sys_kill(agent, SIGCONT);
        } else {
            dead = true;
            *ending = status;
        }
    }
    return dead;
}

_Noreturn static void stand_by(int agent, int hold, int signals)
{
    struct poll polls[2] = {{LIFELINE, 0, 0}, {signals, EPOLLIN, 0}};
    unsigned char information[1024];
    int ending = 0;
    while (!reap(agent, &ending)) {
        bool told = polls[0].fd < 0;
        struct timespec patience = {PATIENCE, 0}; /* ppoll writes to it */
        int happened = sys_poll(polls, 2, told ? &patience : NULL);
        if (told && !happened)
            (void)sys_kill(agent, SIGKILL);
        if (!told && polls[0].happened) {
            polls[0].fd = -1;
            fd_close(&hold);
            (void)sys_kill(agent, SIGCONT);
        }
        if (polls[1].happened)
            (void)sys_read(signals, information, sizeof information);
    }
    kill_below();
    (void)sys_write(REPORT, &ending, sizeof ending);
    sys_exit(0);
}

int parent_make(void)
{
    int pair[2];
    TRY(sys_pipe2(pair, O_CLOEXEC));
    (void)sys_prctl(PR_SET_DUMPABLE, 0);
    (void)sys_prctl(PR_SET_CHILD_SUBREAPER, 1);
    int signals = TRY(signals_open());
    int agent = TRY(sys_fork());
    if (agent) {
        int entrance = ENTRANCE;
        fd_close(&entrance);
        fd_close(&pair[0]);
        stand_by(agent, pair[1], signals);
    }
    int report = REPORT;
    fd_close(&report);
    fd_close(&signals);
    fd_close(&pair[1]);
    TRY(sys_dup3(pair[0], LIFELINE, O_CLOEXEC));
    fd_close(&pair[0]);
    return 0;
}
