/* Shell patterns for names, as Python's fnmatch has them: `*`, `?`, `[a-z]`, `[!a-z]`; a `[` that nothing closes is
 * itself, a range that runs backwards is empty, nothing escapes. No pattern is wrong. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes time in proportion to `pattern_length` times `name_length`, and no memory. */
bool glob_match(const uint8_t *pattern, size_t pattern_length, const uint8_t *name, size_t name_length);
