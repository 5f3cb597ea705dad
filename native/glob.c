#include "patterns.h"

/* Where the `]` is that closes the set which begins at `at`, behind its `[`; `length` if none does. */
static size_t glob_set_end(const uint8_t *pattern, size_t length, size_t at)
{
    if (at < length && pattern[at] == '!')
        at++;
    if (at < length && pattern[at] == ']') /* first, it is a member */
        at++;
    while (at < length && pattern[at] != ']')
        at++;
    return at;
}

/* Whether the set between `set` and `end` holds `wanted`. */
static bool glob_set_holds(const uint8_t *set, size_t length, uint32_t wanted)
{
    bool negated = set[0] == '!', found = false;
    size_t at = negated;

    while (at < length) {
        uint32_t low, high;

        at += utf8_next(set + at, length - at, &low);
        high = low;
        if (length - at >= 2 && set[at] == '-') {
            at++;
            at += utf8_next(set + at, length - at, &high);
        }
        found = found || (low <= wanted && wanted <= high);
    }
    return found != negated;
}

/* Whether what stands at `*at` in the pattern, which is no `*`, matches `character`; `*at` moves behind it. */
static bool glob_one(const uint8_t *pattern, size_t length, size_t *at, uint32_t character)
{
    uint32_t wanted;

    if (pattern[*at] == '?') {
        ++*at;
        return true;
    }
    if (pattern[*at] == '[') {
        size_t begin = *at + 1, end = glob_set_end(pattern, length, begin);

        if (end < length) {
            *at = end + 1;
            return glob_set_holds(pattern + begin, end - begin, character);
        }
    }
    *at += utf8_next(pattern + *at, length - *at, &wanted);
    return wanted == character;
}

bool glob_match(const uint8_t *pattern, size_t pattern_length, const uint8_t *name, size_t name_length)
{
    /* Only the last star is ever tried again: what an earlier one could take more, this one can take as well. */
    size_t at = 0, position = 0, star = 0, resume = 0;
    bool starred = false;

    for (;;) {
        if (at < pattern_length && pattern[at] == '*') {
            starred = true;
            star = ++at;
            resume = position;
            continue;
        }
        if (position == name_length) /* what is left of the pattern wants a character, and a star has none to give back */
            return at == pattern_length;
        if (at < pattern_length) {
            uint32_t character;
            size_t size = utf8_next(name + position, name_length - position, &character);

            if (glob_one(pattern, pattern_length, &at, character)) {
                position += size;
                continue;
            }
        }
        if (!starred)
            return false;
        uint32_t skipped;

        resume += utf8_next(name + resume, name_length - resume, &skipped);
        position = resume;
        at = star;
    }
}
