/* A program and a text: u16 for each field of GREP how long it is, the fields, the text. Each program that loads runs
 * within its memory. */
#include "../patterns.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    static struct regex regex;
    static struct regex_run run;
    struct reader input = reader_of(bytes, size), part[4];
    uint16_t length[4];
    if (!size)
        return 0;
    run.round = bytes[size - 1] & 1 ? UINT32_MAX : run.round; /* after four thousand million characters */
    for (size_t i = 0; i < 4; i++)
        if (get_number(&input, &length[i]))
            return 0;
    for (size_t i = 0; i < 4; i++)
        if (get_part(&input, length[i], &part[i]))
            return 0;
    if (!regex_load(&regex, part[0], part[1], part[2], part[3]))
        (void)regex_search(&regex, &run, input.at, input.left);
    return 0;
}
