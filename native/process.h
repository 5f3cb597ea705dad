/* Reads facts about processes from /proc. */
#pragma once

#include "io.h"

enum { MOST_PROCESSES = 1 << 17, PROCESS_PATH = 96 };

struct process {
    int pid;
    int parent;
    uint64_t threads;
    bool dead; /* a zombie: its group may live */
    bool stopped;
    bool blocked; /* in the kernel, and no signal reaches it there */
    bool ours;
};

/* "/proc/PID" and `file`. */
void process_path(char to[PROCESS_PATH], int pid, const char *file);
/* A word of a line, from `*at` on: its size, 0 at the end. */
size_t process_word(const char *line, size_t size, size_t *at);
/* The number behind the first `key` in a text. False: there is none. */
bool process_number(const char *text, size_t size, const char *key, uint64_t *number);
/* Fills in state and parent, of one of its threads or (0) of the first. 0 or -errno. */
int process_stat(struct process *, int thread);
/* All but this one, into an array of MOST_PROCESSES; how many, or -errno. */
int process_list(struct process *);
/* Whether all of its threads are stopped or dead. The first may be dead, and others not. False, if /proc doesn't tell. */
bool process_stands(struct process *);

/* Names of a directory that are numbers. */
struct numbers {
    struct listing listing;
    char buffer[8192] __attribute__((aligned(8)));
};

/* 0 or -errno. */
int numbers_open(struct numbers *, const char *path);
/* 1: the next one; 0: there is none; or -errno. */
int numbers_next(struct numbers *, int *number);
void numbers_close(struct numbers *);
