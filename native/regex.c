#include "kernel.h"
#include "patterns.h"

/* Whether what follows the step is in its program. */
static bool step_stays(const struct regex_step *step, bool last, size_t steps, size_t ranges)
{
    switch (step->op) {
    case REGEX_MATCH:
        return true;
    case REGEX_READ:
        return !last && step->first <= step->second && step->second <= ranges;
    case REGEX_SPLIT:
        return step->first < steps && step->second < steps;
    case REGEX_ASSERT:
        return !last && step->first <= AT_NO_BOUNDARY;
    default:
        return false;
    }
}

int regex_load(struct regex *regex, struct reader steps, struct reader ranges, struct reader literal, struct reader begins)
{
    size_t range_count = ranges.left / sizeof *regex->ranges;
    regex->step_count = steps.left / sizeof *regex->steps;
    regex->literal = literal;
    regex->skips = begins.left;
    if (!regex->step_count || regex->step_count > REGEX_STEPS || range_count > REGEX_RANGES)
        return -EBADMSG;
    if (steps.left % sizeof *regex->steps || ranges.left % sizeof *regex->ranges || begins.left % sizeof regex->begins)
        return -EBADMSG;
    memcpy(regex->steps, steps.at, regex->step_count * sizeof *regex->steps);
    if (range_count)
        memcpy(regex->ranges, ranges.at, range_count * sizeof *regex->ranges);
    if (regex->skips)
        memcpy(regex->begins, begins.at, sizeof regex->begins);
    for (size_t i = 0; i < regex->step_count; i++)
        if (!step_stays(&regex->steps[i], i + 1 == regex->step_count, regex->step_count, range_count))
            return -EBADMSG;
    return 0;
}

struct regex_context {
    uint32_t before, after; /* UINT32_MAX: there is none */
    bool last;              /* `after` is the last one */
};

static bool is_word(uint32_t c)
{
    return ((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

static bool assertion_holds(uint32_t assertion, const struct regex_context *c)
{
    bool begins = c->before == UINT32_MAX, ends = c->after == UINT32_MAX;
    bool boundary = is_word(c->before) != is_word(c->after);
    switch (assertion) {
    case AT_TEXT_BEGIN:
        return begins;
    case AT_TEXT_END:
        return ends;
    case AT_DOLLAR:
        return ends || (c->after == '\n' && c->last);
    case AT_LINE_BEGIN:
        return begins || c->before == '\n';
    case AT_LINE_END:
        return ends || c->after == '\n';
    case AT_BOUNDARY:
        return boundary;
    default: /* of an empty text, too, Python says that there is none and no boundary */
        return !boundary && !(begins && ends);
    }
}

static bool step_reads(const struct regex *regex, const struct regex_step *step, uint32_t c)
{
    size_t low = step->first, high = step->second;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regex->ranges[middle].high < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < step->second && regex->ranges[low].low <= c;
}

/* Follows all paths from the `pending` states, and leaves the reading ones in `active`. Returns their number, or -1: a
 * match. */
static int run_follow(const struct regex *regex, struct regex_run *run, unsigned pending, const struct regex_context *context)
{
    unsigned active = 0, depth = 0;
    if (!++run->round) { /* once in four thousand million characters */
        memset(run->seen, 0, sizeof run->seen);
        run->round = 1;
    }
    for (unsigned i = 0; i < pending; i++) {
        run->stack[depth++] = run->pending[i];
        while (depth) {
            uint16_t at = run->stack[--depth];
            const struct regex_step *step = &regex->steps[at];
            if (run->seen[at] == run->round)
                continue;
            run->seen[at] = run->round;
            if (step->op == REGEX_MATCH)
                return -1;
            if (step->op == REGEX_READ) {
                run->active[active++] = at;
            } else if (step->op == REGEX_SPLIT) {
                run->stack[depth++] = (uint16_t)step->first;
                run->stack[depth++] = (uint16_t)step->second;
            } else if (assertion_holds(step->first, context)) {
                run->stack[depth++] = (uint16_t)(at + 1);
            }
        }
    }
    return (int)active;
}

bool regex_search(const struct regex *regex, struct regex_run *run, const uint8_t *text, size_t length)
{
    struct regex_context context = {.before = UINT32_MAX, .after = UINT32_MAX, .last = false};
    unsigned pending = 0;
    if (!find_bytes(text, length, regex->literal.at, regex->literal.left))
        return false;
    for (size_t at = 0;;) {
        size_t size = 0, begin = at;
        if (!pending && regex->skips) {
            while (at < length && !(regex->begins[text[at] / 32] >> text[at] % 32 & 1))
                at++;
            if (at == length)
                return false;
            if (at > begin) /* what lies before matters only if it is ASCII, and then it is its last byte */
                context.before = text[at - 1];
        }
        context.after = UINT32_MAX;
        if (at < length) {
            size = utf8_next(text + at, length - at, &context.after);
            context.last = at + size == length;
        }
        run->pending[pending++] = 0; /* a match may begin here */
        int active = run_follow(regex, run, pending, &context);
        if (active < 0)
            return true;
        if (at == length)
            return false;
        pending = 0;
        for (int i = 0; i < active; i++)
            if (step_reads(regex, &regex->steps[run->active[i]], context.after))
                run->pending[pending++] = (uint16_t)(run->active[i] + 1);
        context.before = context.after;
        at += size;
    }
}
