/* A pattern and a name. Matching leaves neither, and a star matches all. */
#include "../patterns.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    static const unsigned char star[] = "*";
    size_t middle = size ? min_size(bytes[0], size - 1) : 0;
    if (!size)
        return 0;
    (void)glob_match(bytes + 1, middle, bytes + 1 + middle, size - 1 - middle);
    must(glob_match(star, 1, bytes, size));
    return 0;
}
