/* Pid 1 of a virtual machine: what init.c does, and before it the mounts, and whenever the machine was copied or slept,
 * what it is told that it is from then on. */
#ifndef MACHINE_H
#define MACHINE_H

#include "init.h"

/* What the kernel calls the program when it is pid 1 of a machine: the path that it was given. */
#define MACHINE_NAME "/machine"

/* Loads modules, finds the disks, makes the root directory: afterwards `/` is the sandbox's, and what was there before is
 * out of reach. Then serves; returns what kept it from that. */
int machine_run(struct agent *child);

/* TRUST and SHARE (renewal.c, share.c). */
bool machine_perform(struct channel *, struct frame *);

/* What pid 1 of a machine remembers: a copy remembers it too. */
struct machine {
    int files;         /* the port to whoever serves the host's directories */
    uint64_t limits[3]; /* as they were set last: whoever has lowered one of his own keeps it */
    int led;           /* 1: out, 0: nowhere; -1: not told yet */
    bool mounted;      /* the directories of the host's */
    uint64_t shares[4]; /* which of them have appeared, by number */
};
extern struct machine the_machine;

/* As mount(2), and makes the directory. */
int machine_mount(const char *source, const char *target, const char *kind, unsigned long flags, const char *options);
int machine_write(const char *path, const char *text);

/* A directory with its parents; there already is fine. */
int machine_directory(const char *path, unsigned mode);

int card_up(const char *card, bool up);
int card_lead(bool out);
int card_address(const unsigned char address[6]);

/* From `port` to the kernel: mounts the host's directories at SHARES_PLACE; -errno. */
int shares_mount(int port, int *relay);
int shares_show(uint32_t number, bool writable, const char *target);

#endif
