/* Text that may hold any byte. What is not UTF-8 is one character a byte, 0xdc00 + the byte, as Python's
 * surrogateescape has it: so every name and every line is a sequence of characters, and no two are the same. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many bytes the first character of `text` takes, which is at least one byte long. */
size_t utf8_next(const uint8_t *text, size_t length, uint32_t *character);

bool utf8_valid(const uint8_t *text, size_t length);
