/* Pid 1 of a virtual machine: the work of init.c, and before it the mounts. After each copy or sleep of the machine,
 * it renews the machine's identity. */
#pragma once

#include "init.h"

/* The end of the program's path when it is pid 1 of a machine. */
#define MACHINE_NAME "/machine"

/* Loads modules, finds the disks, makes the root directory: afterwards `/` is the sandbox's, and what was there before is
 * out of reach. Then serves; returns what kept it from that. */
int machine_run(struct agent *child);

/* TRUST and SHARE (renewal.c, share.c). */
request_function machine_trust, machine_share;

/* The memory of a machine's pid 1, which a copy has too. */
struct machine {
    int files;         /* the port to the host's file server */
    uint64_t limits[3]; /* as set last: a process that has lowered its own keeps it */
    int online;        /* 1: the network interface is up, 0: down; -1: unknown */
    bool mounted;      /* the directories of the host's */
    uint64_t shares[4]; /* which of them have appeared, by number */
};
extern struct machine the_machine;

/* As mount(2), and makes the directory. */
int machine_mount(const char *source, const char *target, const char *kind, unsigned long flags, const char *options);

int network_up(const char *interface, bool up);
/* Sets address and route of `eth0`, or takes it down. */
int network_connect(bool online);
int network_address(const unsigned char address[6]);

/* From `port` to the kernel: mounts the host's directories at SHARES_PLACE; -errno. */
int shares_mount(int port, int *relay);
int shares_show(uint32_t number, bool writable, const char *target);
