#include "patterns.h"

size_t utf8_next(const uint8_t *text, size_t length, uint32_t *character)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t first = text[0];
    size_t size = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    uint32_t value = first;

    if (size == 1) {
        *character = first;
        return 1;
    }
    *character = 0xdc00u + first;
    if (size == 0 || size > length)
        return 1;
    value &= 0x7fu >> size;
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 1;
        value = value << 6 | (text[i] & 0x3fu);
    }
    if (value < least[size] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        return 1;
    *character = value;
    return size;
}

bool utf8_valid(const uint8_t *text, size_t length)
{
    uint32_t character;

    for (size_t at = 0; at < length;) {
        at += utf8_next(text + at, length - at, &character);
        if (character - 0xdc80 < 0x80)
            return false;
    }
    return true;
}
