/* A pattern and a text. Whatever compiles has steps that stay in their program, and runs within its memory. */
#include "../regex.h"
#include "../tiny.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    static struct regex regex;
    static struct regex_run run;
    struct regex_error error;
    if (size < 2)
        return 0;
    size_t middle = min_size((size_t)bytes[0] | (size_t)bytes[1] << 8, size - 2);
    run.round = bytes[0] == 1 ? UINT32_MAX : run.round; /* after four thousand million characters */
    bytes++, size--;
    if (!regex_compile(&regex, bytes + 1, middle, &error)) {
        must(strlen(error.what) < 32 && error.at <= middle);
        return 0;
    }
    for (int i = 0; i < regex.step_count; i++) {
        int first = i + regex.steps[i].first, second = i + regex.steps[i].second;
        must(first >= 0 && first < regex.step_count && second >= 0 && second < regex.step_count);
    }
    (void)regex_search(&regex, &run, bytes + 1 + middle, size - 1 - middle);
    return 0;
}
