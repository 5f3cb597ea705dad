/* Regular expressions in linear time: a program of at most REGEX_STEPS steps, run over all its states at once
 * (Thompson), so that no text takes longer than its length times the program's. It says whether a text holds a match,
 * not where. The syntax is a part of that of Python's `re` with re.ASCII, and means the same; what is no part of it is
 * refused by name (docs/patterns.md). */
#ifndef REGEX_H
#define REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REGEX_PATTERN = 8192, /* bytes */
    REGEX_STEPS = 4096,
    REGEX_RANGES = 4096,
    REGEX_SETS = 512,
    REGEX_DEPTH = 100, /* groups in groups */
    REGEX_LITERAL = 64,
};

struct regex_step {
    uint8_t op;
    uint32_t value;
    int16_t first, second; /* where to go on, from here */
};

struct regex_range {
    uint32_t low, high;
};

struct regex_set {
    uint32_t ascii[4]; /* a bit for each character below 128 */
    uint16_t first, count; /* ranges of those above, sorted */
    bool negated;           /* for those above; the bits say it already */
};

struct regex {
    struct regex_step steps[REGEX_STEPS];
    struct regex_range ranges[REGEX_RANGES];
    struct regex_set sets[REGEX_SETS];
    uint16_t step_count, range_count, set_count;
    uint8_t literal[REGEX_LITERAL]; /* every text that matches holds it */
    uint8_t literal_length;
    bool only_literal; /* and every text that holds it matches */
    bool skips;       /* a match begins with one of the bytes `begins` */
    uint32_t begins[8];
};

struct regex_error {
    const char *what; /* the construct's name */
    size_t at;      /* in bytes */
};

/* Room for a run: what one text leaves there means nothing to the next. */
struct regex_run {
    uint16_t pending[REGEX_STEPS + 1], active[REGEX_STEPS], stack[REGEX_STEPS];
    uint32_t seen[REGEX_STEPS]; /* the number of the round in which a state was last met */
    uint32_t round;
};

/* False: `error` says why. */
bool regex_compile(struct regex *regex, const uint8_t *pattern, size_t length, struct regex_error *error);

/* `run` was zeroed before its first use. */
bool regex_search(const struct regex *regex, struct regex_run *run, const uint8_t *text, size_t length);

#endif
