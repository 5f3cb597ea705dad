/* Who there is, by a passwd(5) and a group(5) that the sandbox may have written itself. A line counts if it is one of
 * PASSWD_LINE bytes at most with exactly its fields, a name, and ids in digits alone; all others are passed over. The
 * first that counts is meant, as everywhere. */
#ifndef PASSWD_H
#define PASSWD_H

#include "bytes.h"

enum {
    PASSWD_FILE = 1 << 20, /* read no more of either file: what lies behind is not there */
    PASSWD_LINE = 4096,
    PASSWD_NAME = 256,
};

struct account {
    uint32_t uid, gid;
    struct reader name, home, shell; /* parts of the file */
};

/* 0 or -ENOENT. */
int passwd_by_name(struct reader file, struct reader name, struct account *);
int passwd_by_uid(struct reader file, uint32_t uid, struct account *);

/* The ids of the groups that list `name`, at most `most` and none twice; returns how many. `primary` is left out. */
size_t group_ids(struct reader file, struct reader name, uint32_t primary, uint32_t *ids, size_t most);

#endif
