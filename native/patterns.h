/* Patterns of names and of lines (docs/patterns.md), and the characters that they are about. */
#pragma once

#include "bytes.h"

/* Text that may hold any byte. A byte outside of UTF-8 is one character, 0xdc00 + the byte, as in Python's
 * surrogateescape. So every name and every line is a sequence of characters, and no two are the same. */
/* How many bytes the first character of `text` takes, which is at least one byte long. */
size_t utf8_next(const uint8_t *text, size_t length, uint32_t *character);

bool utf8_valid(const uint8_t *text, size_t length);

/* Shell patterns for names, as Python's fnmatch has them: `*`, `?`, `[a-z]`, `[!a-z]`; a `[` that nothing closes is
 * itself, a range that runs backwards is empty, nothing escapes. No pattern is wrong. */
/* Takes time in proportion to `pattern_length` times `name_length`, and no memory. */
bool glob_match(const uint8_t *pattern, size_t pattern_length, const uint8_t *name, size_t name_length);

/* Regular expressions in linear time: a program of at most REGEX_STEPS steps, run over all its states at once
 * (Thompson), so that no text takes longer than its length times the program's. It says whether a text holds a match,
 * not where. The host compiles the pattern (`backends/guest/_regex.py`). */
enum { REGEX_STEPS = 4096, REGEX_RANGES = 4096 };
enum regex_op { REGEX_MATCH, REGEX_READ, REGEX_SPLIT, REGEX_ASSERT };
enum regex_assertion { AT_TEXT_BEGIN, AT_TEXT_END, AT_DOLLAR, AT_LINE_BEGIN, AT_LINE_END, AT_BOUNDARY, AT_NO_BOUNDARY };

/* READ: a character of the ranges from `first` on, before `second`. SPLIT: goes on at both. ASSERT: `first` holds here. */
struct regex_step {
    uint32_t op, first, second;
};

struct regex_range {
    uint32_t low, high;
};

struct regex {
    struct regex_step steps[REGEX_STEPS];
    struct regex_range ranges[REGEX_RANGES]; /* those of one step are sorted */
    size_t step_count;
    struct reader literal; /* every text that matches holds it */
    bool skips;            /* a match begins with one of the bytes `begins` */
    uint32_t begins[8];
};

/* Room for a run: what one text leaves there means nothing to the next. */
struct regex_run {
    uint16_t pending[REGEX_STEPS + 1], active[REGEX_STEPS], stack[REGEX_STEPS];
    uint32_t seen[REGEX_STEPS]; /* the number of the round in which a state was last met */
    uint32_t round;
};

/* Takes a program as a host says it. 0; -EBADMSG: a step leaves it. */
int regex_load(struct regex *, struct reader steps, struct reader ranges, struct reader literal, struct reader begins);

/* `run` was zeroed before its first use. */
bool regex_search(const struct regex *regex, struct regex_run *run, const uint8_t *text, size_t length);
