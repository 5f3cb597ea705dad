#include "regex.h"

#include "tiny.h"
#include "utf8.h"

/*
 * There is no tree. The parser writes steps as it reads, and a quantifier moves or repeats the block of steps of what
 * stands before it: jumps count from where they stand, so that a block means the same wherever it is. What may not be
 * quantified again, or at all, is told by the kind of the last block.
 */

enum step_op { STEP_LITERAL, STEP_FOLDED, STEP_ANY, STEP_ALL, STEP_SET, STEP_SPLIT, STEP_JUMP, STEP_ASSERT, STEP_MATCH };

enum assertion { AT_TEXT_BEGIN, AT_TEXT_END, AT_DOLLAR, AT_LINE_BEGIN, AT_LINE_END, AT_BOUNDARY, AT_NO_BOUNDARY };

enum piece_kind { PIECE_NOTHING, PIECE_POSITION, PIECE_REPEAT, PIECE_ATOM };

enum { IGNORE_CASE = 1, MULTILINE = 2, DOT_ALL = 4 };

static const uint16_t NO_JUMP = 0xffff;
static const uint32_t MANY_TIMES = 1u << 20; /* of a repetition: more than any program has steps */

struct regex_group {
    uint16_t start, alternative; /* the group's first step, and that of the alternative that is being read */
    uint16_t ends;             /* the last jump to the group's end: a chain through `value` */
    uint8_t outer_flags;
};

struct regex_parser {
    const uint8_t *text;
    size_t length, at;
    struct regex *regex;
    struct regex_error *error;
    struct regex_group groups[REGEX_DEPTH + 1];
    unsigned depth;
    uint8_t flags;
    enum piece_kind last;
    uint16_t atom; /* the first step of the last block */
    bool begun;    /* something but flags and comments has been read */
    uint8_t literal[REGEX_LITERAL], literal_length, last_length; /* the literals that have just been read */
    bool plain;        /* nothing but literals so far */
    bool alternatives; /* outside of all groups: no literal is in all of them */
};

static bool refuse_at(struct regex_parser *p, const char *what, size_t at)
{
    p->error->what = what;
    p->error->at = at;
    return false;
}

static bool refuse(struct regex_parser *p, const char *what)
{
    return refuse_at(p, what, p->at);
}

static bool pattern_more(const struct regex_parser *p)
{
    return p->at < p->length;
}

static bool pattern_follows(const struct regex_parser *p, char c)
{
    return pattern_more(p) && p->text[p->at] == (uint8_t)c;
}

static bool pattern_take(struct regex_parser *p, char c)
{
    if (!pattern_follows(p, c))
        return false;
    p->at++;
    return true;
}

static uint32_t pattern_next(struct regex_parser *p)
{
    uint32_t character;

    p->at += utf8_next(p->text + p->at, p->length - p->at, &character);
    return character;
}

static bool is_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(uint32_t c)
{
    return (c | 32) >= 'a' && (c | 32) <= 'z' && c < 128;
}

static bool is_word(uint32_t c)
{
    return is_letter(c) || is_digit(c) || c == '_';
}

static uint32_t folded(uint32_t c)
{
    return is_letter(c) ? c | 32 : c;
}

/* The longest run of literals is kept: memmem finds it faster than any machine. */
static void literal_end(struct regex_parser *p)
{
    if (p->literal_length > p->regex->literal_length) {
        memcpy(p->regex->literal, p->literal, p->literal_length);
        p->regex->literal_length = p->literal_length;
    }
    p->literal_length = p->last_length = 0;
}

static void literal_add(struct regex_parser *p, uint32_t c)
{
    uint8_t bytes[4];
    size_t size = utf8_put(c, bytes);

    if (p->depth > 0 || ((p->flags & IGNORE_CASE) && is_letter(c)) || (c >= 0xd800 && c < 0xe000)) {
        p->plain = false;
        literal_end(p);
        return;
    }
    if (p->literal_length + size > REGEX_LITERAL) {
        p->plain = false;
        literal_end(p);
    }
    memcpy(p->literal + p->literal_length, bytes, size);
    p->literal_length = (uint8_t)(p->literal_length + size);
    p->last_length = (uint8_t)size;
}

static void literal_none(struct regex_parser *p)
{
    p->plain = false;
    literal_end(p);
}

static bool step_emit(struct regex_parser *p, enum step_op op, uint32_t value)
{
    struct regex_step *step = &p->regex->steps[p->regex->step_count];

    if (p->regex->step_count == REGEX_STEPS)
        return refuse(p, "pattern too large");
    memset(step, 0, sizeof *step);
    step->op = (uint8_t)op;
    step->value = value;
    p->regex->step_count++;
    return true;
}

static bool piece_atom(struct regex_parser *p, enum step_op op, uint32_t value)
{
    p->atom = p->regex->step_count;
    p->last = PIECE_ATOM;
    return step_emit(p, op, value);
}

static bool piece_literal(struct regex_parser *p, uint32_t c)
{
    literal_add(p, c);
    if ((p->flags & IGNORE_CASE) && is_letter(c))
        return piece_atom(p, STEP_FOLDED, folded(c));
    return piece_atom(p, STEP_LITERAL, c);
}

static bool piece_position(struct regex_parser *p, enum assertion assertion)
{
    literal_none(p);
    p->last = PIECE_POSITION;
    return step_emit(p, STEP_ASSERT, assertion);
}

/* Opens a gap of one step at `at`. */
static bool step_insert(struct regex_parser *p, uint16_t at, enum step_op op)
{
    struct regex *regex = p->regex;

    if (!step_emit(p, op, 0))
        return false;
    memmove(&regex->steps[at + 1], &regex->steps[at],
        (size_t)(regex->step_count - 1 - at) * sizeof regex->steps[0]);
    memset(&regex->steps[at], 0, sizeof regex->steps[at]);
    regex->steps[at].op = (uint8_t)op;
    return true;
}

static void step_split(struct regex_parser *p, int at, int first, int second)
{
    p->regex->steps[at].first = (int16_t)first;
    p->regex->steps[at].second = (int16_t)second;
}

/* sets */

static struct regex_set *set_new(struct regex_parser *p)
{
    struct regex_set *set = &p->regex->sets[p->regex->set_count];

    if (p->regex->set_count == REGEX_SETS) {
        refuse(p, "too many sets");
        return NULL;
    }
    p->regex->set_count++;
    memset(set, 0, sizeof *set);
    set->first = p->regex->range_count;
    return set;
}

static void set_bit(struct regex_set *set, uint32_t c)
{
    set->ascii[c / 32] |= 1u << c % 32;
}

static bool set_has_bit(const struct regex_set *set, uint32_t c)
{
    return set->ascii[c / 32] >> c % 32 & 1;
}

static bool set_add(struct regex_parser *p, struct regex_set *set, uint32_t low, uint32_t high)
{
    struct regex_range *range = &p->regex->ranges[p->regex->range_count];

    for (uint32_t c = low; c <= high && c < 128; c++) {
        set_bit(set, c);
        if ((p->flags & IGNORE_CASE) && is_letter(c))
            set_bit(set, c ^ 32);
    }
    if (high < 128)
        return true;
    if (p->regex->range_count == REGEX_RANGES)
        return refuse(p, "set too large");
    range->low = low < 128 ? 128 : low;
    range->high = high;
    p->regex->range_count++;
    set->count++;
    return true;
}

/* \d \s \w and their opposites. False: `letter` is none of them. */
static bool set_class(struct regex_parser *p, struct regex_set *set, uint32_t letter, bool *added)
{
    uint32_t kind = letter | 32;
    bool opposite = letter < 'a';

    *added = true;
    if (kind != 'd' && kind != 's' && kind != 'w')
        return false;
    for (uint32_t c = 0; c < 128; c++) {
        bool in = kind == 'd' ? is_digit(c) : kind == 'w' ? is_word(c) : c == ' ' || (c >= '\t' && c <= '\r');

        if (in != opposite)
            set_bit(set, c);
    }
    if (opposite)
        *added = set_add(p, set, 128, 0x10ffff);
    return true;
}

/* Sorts the ranges of a set and joins those that touch, so that they can be searched by halves. */
static void set_finish(struct regex_parser *p, struct regex_set *set, bool negated)
{
    struct regex_range *ranges = &p->regex->ranges[set->first];
    unsigned kept = 0;

    for (unsigned gap = set->count / 2; gap > 0; gap /= 2)
        for (unsigned i = gap; i < set->count; i++) {
            struct regex_range moved = ranges[i];
            unsigned j = i;

            for (; j >= gap && ranges[j - gap].low > moved.low; j -= gap)
                ranges[j] = ranges[j - gap];
            ranges[j] = moved;
        }
    for (unsigned i = 0; i < set->count; i++) {
        if (kept > 0 && ranges[i].low <= ranges[kept - 1].high + 1) {
            if (ranges[i].high > ranges[kept - 1].high)
                ranges[kept - 1].high = ranges[i].high;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    set->count = (uint16_t)kept;
    p->regex->range_count = (uint16_t)(set->first + kept);
    set->negated = negated;
    for (unsigned i = 0; negated && i < 4; i++)
        set->ascii[i] = ~set->ascii[i];
}

static bool regex_set_holds(const struct regex *regex, const struct regex_set *set, uint32_t c)
{
    const struct regex_range *ranges = &regex->ranges[set->first];
    unsigned low = 0, high = set->count;

    if (c < 128)
        return set_has_bit(set, c);
    while (low < high) {
        unsigned middle = (low + high) / 2;

        if (ranges[middle].high < c)
            low = middle + 1;
        else
            high = middle;
    }
    return (low < set->count && ranges[low].low <= c) != set->negated;
}

/* escapes */

static bool escape_hexadecimal(struct regex_parser *p, unsigned digits, size_t start, uint32_t *value)
{
    *value = 0;
    for (unsigned i = 0; i < digits; i++) {
        uint32_t c = pattern_more(p) ? p->text[p->at] : 0;

        if (!is_digit(c) && !(is_letter(c) && folded(c) <= 'f'))
            return refuse_at(p, "incomplete escape", start);
        *value = *value << 4 | (is_digit(c) ? c - '0' : folded(c) - 'a' + 10);
        p->at++;
    }
    if (*value > 0x10ffff)
        return refuse_at(p, "escape of no character", start);
    return true;
}

static uint32_t escape_octal(struct regex_parser *p, uint32_t value, unsigned most)
{
    while (most-- > 0 && pattern_more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '7')
        value = value << 3 | (uint32_t)(p->text[p->at++] - '0');
    return value;
}

/* An escape that stands for one character; `c` follows the backslash and has been read. */
static bool escape_character(struct regex_parser *p, uint32_t c, size_t start, uint32_t *value)
{
    static const char letters[] = "tnrfva", meanings[] = "\t\n\r\f\v\a";

    for (unsigned i = 0; letters[i]; i++)
        if (c == (uint8_t)letters[i]) {
            *value = (uint8_t)meanings[i];
            return true;
        }
    if (c == 'x')
        return escape_hexadecimal(p, 2, start, value);
    if (c == 'u')
        return escape_hexadecimal(p, 4, start, value);
    if (c == 'U')
        return escape_hexadecimal(p, 8, start, value);
    if (c == 'N')
        return refuse_at(p, "character by name (\\N)", start);
    if (is_letter(c) || is_digit(c))
        return refuse_at(p, "unknown escape", start);
    *value = c;
    return true;
}

static bool piece_escape(struct regex_parser *p)
{
    size_t start = p->at - 1;
    uint32_t c, value;
    bool added;

    if (!pattern_more(p))
        return refuse_at(p, "backslash at the end", start);
    c = pattern_next(p);
    switch (c) {
    case 'A':
        return piece_position(p, AT_TEXT_BEGIN);
    case 'Z':
        return piece_position(p, AT_TEXT_END);
    case 'b':
        return piece_position(p, AT_BOUNDARY);
    case 'B':
        return piece_position(p, AT_NO_BOUNDARY);
    case 'd':
    case 'D':
    case 's':
    case 'S':
    case 'w':
    case 'W': {
        struct regex_set *set = set_new(p);

        if (!set || !set_class(p, set, c, &added) || !added)
            return false;
        set_finish(p, set, false);
        literal_none(p);
        return piece_atom(p, STEP_SET, (uint32_t)(set - p->regex->sets));
    }
    default:
        break;
    }
    if (c == '0')
        return piece_literal(p, escape_octal(p, 0, 2));
    if (is_digit(c)) {
        if (c <= '7' && p->length - p->at >= 2 && (p->text[p->at] & 0xf8) == '0' && (p->text[p->at + 1] & 0xf8) == '0') {
            value = escape_octal(p, c - '0', 2);
            if (value > 0xff)
                return refuse_at(p, "escape of no character", start);
            return piece_literal(p, value);
        }
        return refuse_at(p, "back reference", start);
    }
    return escape_character(p, c, start, &value) && piece_literal(p, value);
}

/* One member of a set: a character, or a class, which is added at once. */
static bool set_member(struct regex_parser *p, struct regex_set *set, uint32_t *character, bool *is_class)
{
    size_t start = p->at;
    uint32_t c = pattern_next(p);
    bool added;

    *is_class = false;
    *character = c;
    if (c == '[' && (pattern_follows(p, ':') || pattern_follows(p, '.') || pattern_follows(p, '=')))
        return refuse_at(p, "POSIX class ([:name:])", start);
    if (c != '\\')
        return true;
    if (!pattern_more(p))
        return refuse_at(p, "set without an end", start);
    c = pattern_next(p);
    if (set_class(p, set, c, &added)) {
        *is_class = true;
        return added;
    }
    if (c == 'b') {
        *character = '\b';
        return true;
    }
    if (c >= '0' && c <= '7') {
        *character = escape_octal(p, c - '0', 2);
        return *character <= 0xff || refuse_at(p, "escape of no character", start);
    }
    return escape_character(p, c, start, character);
}

static bool piece_set(struct regex_parser *p)
{
    size_t start = p->at - 1;
    struct regex_set *set = set_new(p);
    bool negated, first = true;

    if (!set)
        return false;
    negated = pattern_take(p, '^');
    for (;; first = false) {
        uint32_t low, high;
        bool low_class, high_class;
        size_t here = p->at;

        if (!pattern_more(p))
            return refuse_at(p, "set without an end", start);
        if (!first && pattern_take(p, ']'))
            break;
        if (!set_member(p, set, &low, &low_class))
            return false;
        if (!pattern_take(p, '-')) {
            if (!low_class && !set_add(p, set, low, low))
                return false;
            continue;
        }
        if (!pattern_more(p))
            return refuse_at(p, "set without an end", start);
        if (pattern_take(p, ']')) {
            if ((!low_class && !set_add(p, set, low, low)) || !set_add(p, set, '-', '-'))
                return false;
            break;
        }
        if (!set_member(p, set, &high, &high_class))
            return false;
        if (low_class || high_class || high < low)
            return refuse_at(p, "range that is none", here);
        if (!set_add(p, set, low, high))
            return false;
    }
    set_finish(p, set, negated);
    literal_none(p);
    return piece_atom(p, STEP_SET, (uint32_t)(set - p->regex->sets));
}

/* repetition */

static bool bound(struct regex_parser *p, uint32_t *value)
{
    bool any = false;

    for (*value = 0; pattern_more(p) && is_digit(p->text[p->at]); p->at++, any = true)
        *value = *value >= MANY_TIMES ? MANY_TIMES : *value * 10 + (uint32_t)(p->text[p->at] - '0');
    return any;
}

/* `{m,n}`, behind its `{`. False: it is no repetition, and the brace stands for itself. */
static bool bounds(struct regex_parser *p, uint32_t *least, uint32_t *most)
{
    size_t start = p->at;
    bool low, high;

    if (pattern_follows(p, '}'))
        return false;
    low = bound(p, least);
    *most = *least;
    high = low;
    if (pattern_take(p, ',')) {
        high = bound(p, most);
        if (!high)
            *most = UINT32_MAX;
        high = true;
    }
    if (high && pattern_take(p, '}'))
        return true;
    p->at = start;
    return false;
}

/* Repeats the last block. */
static bool step_repeat(struct regex_parser *p, uint32_t least, uint32_t most)
{
    struct regex *regex = p->regex;
    uint16_t start = p->atom, size = (uint16_t)(regex->step_count - start);
    bool endless = most == UINT32_MAX;
    uint64_t steps;

    p->last = PIECE_REPEAT;
    if (size == 0)
        return true; /* nothing, however often */
    if (most == 0) {
        regex->step_count = start;
        return true;
    }
    steps = (uint64_t)least * size;
    if (endless)
        steps += least == 0 ? size + 2u : 1u;
    else
        steps += (uint64_t)(most - least) * (size + 1u);
    if (start + steps > REGEX_STEPS)
        return refuse(p, "pattern too large");

    if (least == 0 && !step_insert(p, start, STEP_SPLIT))
        return false;
    /* The block itself, wherever it now is, is the first of its copies. */
    uint16_t block = (uint16_t)(start + (least == 0));

    for (uint32_t i = 1; i < least; i++) {
        memcpy(&regex->steps[regex->step_count], &regex->steps[block], size * sizeof regex->steps[0]);
        regex->step_count = (uint16_t)(regex->step_count + size);
    }
    if (endless) {
        if (!step_emit(p, STEP_SPLIT, 0))
            return false;
        step_split(p, regex->step_count - 1, -size, 1);
        if (least == 0)
            step_split(p, start, 1, size + 2);
        return true;
    }
    uint16_t end = (uint16_t)(start + steps);

    if (least == 0)
        step_split(p, start, 1, end - start);
    for (uint32_t i = least == 0 ? 1 : least; i < most; i++) {
        if (!step_emit(p, STEP_SPLIT, 0))
            return false;
        step_split(p, regex->step_count - 1, 1, end - (regex->step_count - 1));
        memcpy(&regex->steps[regex->step_count], &regex->steps[block], size * sizeof regex->steps[0]);
        regex->step_count = (uint16_t)(regex->step_count + size);
    }
    return true;
}

static bool piece_repeat(struct regex_parser *p, char c)
{
    size_t start = p->at - 1;
    uint32_t least = 0, most = UINT32_MAX;

    if (c == '{' && !bounds(p, &least, &most))
        return piece_literal(p, '{');
    if (c == '+')
        least = 1;
    if (c == '?')
        most = 1;
    if (most < least)
        return refuse_at(p, "repetition {m,n} with m > n", start);
    if (p->last == PIECE_NOTHING || p->last == PIECE_POSITION)
        return refuse_at(p, "repetition of nothing", start);
    if (p->last == PIECE_REPEAT)
        return refuse_at(p, "repetition of a repetition", start);
    if (pattern_take(p, '+'))
        return refuse_at(p, "possessive repetition", start);
    pattern_take(p, '?'); /* lazy: it matches the same texts */
    p->literal_length = (uint8_t)(p->literal_length - p->last_length);
    literal_none(p);
    return step_repeat(p, least, most);
}

/* groups */

static bool group_open(struct regex_parser *p, uint8_t flags)
{
    struct regex_group *group;

    if (p->depth == REGEX_DEPTH)
        return refuse(p, "groups nested too deeply");
    literal_none(p);
    group = &p->groups[++p->depth];
    group->start = group->alternative = p->regex->step_count;
    group->ends = NO_JUMP;
    group->outer_flags = p->flags;
    p->flags = flags;
    p->last = PIECE_NOTHING;
    return true;
}

/* An alternative ends: the ones after it begin behind a jump to the group's end, which is not known yet. */
static bool group_alternative(struct regex_parser *p)
{
    struct regex_group *group = &p->groups[p->depth];
    uint16_t size = (uint16_t)(p->regex->step_count - group->alternative);

    if (!step_insert(p, group->alternative, STEP_SPLIT) || !step_emit(p, STEP_JUMP, group->ends))
        return false;
    step_split(p, group->alternative, 1, size + 2);
    group->ends = (uint16_t)(p->regex->step_count - 1);
    group->alternative = p->regex->step_count;
    p->last = PIECE_NOTHING;
    p->begun = true;
    literal_none(p);
    if (p->depth == 0)
        p->alternatives = true;
    return true;
}

static void group_close(struct regex_parser *p)
{
    struct regex_group *group = &p->groups[p->depth];

    for (uint16_t at = group->ends; at != NO_JUMP;) {
        struct regex_step *jump = &p->regex->steps[at];

        at = (uint16_t)jump->value;
        jump->value = 0;
        jump->first = (int16_t)(p->regex->step_count - (jump - p->regex->steps));
    }
    p->flags = group->outer_flags;
    p->atom = group->start;
    p->last = PIECE_ATOM;
}

static bool flag_of(uint32_t c, uint8_t *flags)
{
    switch (c) {
    case 'i':
        *flags |= IGNORE_CASE;
        return true;
    case 'm':
        *flags |= MULTILINE;
        return true;
    case 's':
        *flags |= DOT_ALL;
        return true;
    case 'a': /* so it is in any case */
        return true;
    default:
        return false;
    }
}

/* `(?flags)`, `(?flags:` and `(?flags-flags:`, at the first of them. */
static bool group_flags(struct regex_parser *p, size_t start)
{
    uint8_t on = 0, off = 0;
    bool minus = false, some = false;

    for (;; some = true) {
        uint32_t c = pattern_more(p) ? p->text[p->at] : 0;

        if (c == 'x')
            return refuse_at(p, "verbose flag (?x)", start);
        if (c == 'u' || c == 'L')
            return refuse_at(p, "flag (?u) or (?L)", start);
        if (!minus && c == '-') {
            minus = true;
            p->at++;
            some = false;
            continue;
        }
        if (minus && c == 'a')
            return refuse_at(p, "flag (?-a)", start);
        if (!flag_of(c, minus ? &off : &on))
            break;
        p->at++;
    }
    if (some && pattern_take(p, ':')) {
        if (on & off)
            return refuse_at(p, "flag that is on and off", start);
        return group_open(p, (uint8_t)((p->flags | on) & ~off));
    }
    if (!some || minus || !pattern_take(p, ')'))
        return refuse_at(p, "unknown group", start);
    if (p->begun || p->depth > 0)
        return refuse_at(p, "flags not at the beginning", start);
    p->flags |= on;
    return true;
}

static bool group_name(struct regex_parser *p, size_t start)
{
    size_t first = p->at;

    while (pattern_more(p) && is_word(p->text[p->at]))
        p->at++;
    if (p->at == first || is_digit(p->text[first]) || !pattern_take(p, '>'))
        return refuse_at(p, "bad name of a group", start);
    return true;
}

static bool piece_group(struct regex_parser *p)
{
    size_t start = p->at - 1;

    if (!pattern_take(p, '?')) {
        p->begun = true;
        return group_open(p, p->flags);
    }
    if (pattern_take(p, '#')) {
        while (pattern_more(p) && !pattern_follows(p, ')'))
            p->at++;
        return pattern_take(p, ')') || refuse_at(p, "comment without an end", start);
    }
    if (pattern_follows(p, '=') || pattern_follows(p, '!'))
        return refuse_at(p, "look ahead", start);
    if (pattern_take(p, '<'))
        return refuse_at(p, pattern_follows(p, '=') || pattern_follows(p, '!') ? "look behind" : "unknown group", start);
    if (pattern_follows(p, '>'))
        return refuse_at(p, "atomic group", start);
    if (pattern_follows(p, '('))
        return refuse_at(p, "conditional group", start);
    if (pattern_take(p, 'P')) {
        if (pattern_follows(p, '='))
            return refuse_at(p, "back reference", start);
        if (!pattern_take(p, '<'))
            return refuse_at(p, "unknown group", start);
        if (!group_name(p, start))
            return false;
        p->begun = true;
        return group_open(p, p->flags);
    }
    if (pattern_take(p, ':')) {
        p->begun = true;
        return group_open(p, p->flags);
    }
    if (!group_flags(p, start))
        return false;
    if (p->depth > 0)
        p->begun = true;
    return true;
}

static bool pattern_piece(struct regex_parser *p)
{
    uint8_t c = p->text[p->at];

    if (c == '(') {
        p->at++;
        return piece_group(p);
    }
    p->begun = true;
    switch (c) {
    case '|':
        p->at++;
        return group_alternative(p);
    case ')':
        if (p->depth == 0)
            return refuse(p, "parenthesis without its group");
        p->at++;
        literal_none(p);
        group_close(p);
        p->depth--;
        return true;
    case '\\':
        p->at++;
        return piece_escape(p);
    case '[':
        p->at++;
        return piece_set(p);
    case '*':
    case '+':
    case '?':
    case '{':
        p->at++;
        return piece_repeat(p, (char)c);
    case '.':
        p->at++;
        literal_none(p);
        return piece_atom(p, p->flags & DOT_ALL ? STEP_ALL : STEP_ANY, 0);
    case '^':
        p->at++;
        return piece_position(p, p->flags & MULTILINE ? AT_LINE_BEGIN : AT_TEXT_BEGIN);
    case '$':
        p->at++;
        return piece_position(p, p->flags & MULTILINE ? AT_LINE_END : AT_DOLLAR);
    default:
        return piece_literal(p, pattern_next(p));
    }
}

/* what the program can begin with */

static void begin_byte(struct regex *regex, uint32_t c)
{
    if (c < 128)
        regex->begins[c / 32] |= 1u << c % 32;
    else /* any byte of text that is not ASCII: a skip must not end inside of a character */
        for (unsigned i = 4; i < 8; i++)
            regex->begins[i] = UINT32_MAX;
}

static void begin_step(struct regex *regex, const struct regex_step *step)
{
    switch (step->op) {
    case STEP_FOLDED:
        begin_byte(regex, step->value ^ 32);
        begin_byte(regex, step->value);
        break;
    case STEP_LITERAL:
        begin_byte(regex, step->value);
        break;
    case STEP_SET:
        for (unsigned i = 0; i < 4; i++)
            regex->begins[i] |= regex->sets[step->value].ascii[i];
        begin_byte(regex, 128);
        break;
    default:
        for (unsigned i = 0; i < 8; i++)
            regex->begins[i] = UINT32_MAX;
        break;
    }
}

/* Follows every way from the first step to one that reads, as if all assertions held. `seen` has a bit for a step. */
static void find_begins(struct regex *regex)
{
    uint32_t seen[REGEX_STEPS / 32] = {0};
    uint16_t stack[REGEX_STEPS];
    size_t depth = 0;

    regex->skips = true;
    stack[depth++] = 0;
    seen[0] = 1;
    while (depth > 0) {
        uint16_t at = stack[--depth];
        const struct regex_step *step = &regex->steps[at];
        int ways[2], count = 0;

        if (step->op == STEP_MATCH) {
            regex->skips = false;
            return;
        }
        if (step->op == STEP_SPLIT) {
            ways[count++] = at + step->first;
            ways[count++] = at + step->second;
        } else if (step->op == STEP_JUMP) {
            ways[count++] = at + step->first;
        } else if (step->op == STEP_ASSERT) {
            ways[count++] = at + 1;
        } else {
            begin_step(regex, step);
        }
        for (int i = 0; i < count; i++)
            if (!(seen[ways[i] / 32] >> ways[i] % 32 & 1)) {
                seen[ways[i] / 32] |= 1u << ways[i] % 32;
                stack[depth++] = (uint16_t)ways[i];
            }
    }
}

bool regex_compile(struct regex *regex, const uint8_t *pattern, size_t length, struct regex_error *error)
{
    struct regex_parser p;

    memset(&p, 0, sizeof p);
    p.text = pattern;
    p.length = length;
    p.regex = regex;
    p.error = error;
    p.groups[0].ends = NO_JUMP;
    p.plain = true;
    regex->step_count = regex->range_count = regex->set_count = 0;
    regex->literal_length = 0;
    memset(regex->begins, 0, sizeof regex->begins);
    if (length > REGEX_PATTERN)
        return refuse(&p, "pattern too large");
    while (pattern_more(&p))
        if (!pattern_piece(&p))
            return false;
    if (p.depth > 0)
        return refuse(&p, "group without an end");
    literal_end(&p);
    group_close(&p);
    if (!step_emit(&p, STEP_MATCH, 0))
        return false;
    if (p.alternatives)
        regex->literal_length = 0;
    regex->only_literal = p.plain && regex->literal_length > 0;
    find_begins(regex);
    return true;
}

/* the machine */

struct regex_context {
    uint32_t before, after; /* UINT32_MAX: there is none */
    bool last;        /* `after` is the last one */
};

static bool assertion_holds(uint32_t assertion, const struct regex_context *c)
{
    bool begins = c->before == UINT32_MAX, ends = c->after == UINT32_MAX;
    bool boundary = (!begins && is_word(c->before)) != (!ends && is_word(c->after));

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
    switch (step->op) {
    case STEP_LITERAL:
        return step->value == c;
    case STEP_FOLDED:
        return step->value == folded(c);
    case STEP_ANY:
        return c != '\n';
    case STEP_ALL:
        return true;
    default:
        return regex_set_holds(regex, &regex->sets[step->value], c);
    }
}

/* Follows all ways from the `pending` states; those that read are left in `active`. Returns how many, or -1: a match. */
static int run_follow(const struct regex *regex, struct regex_run *run, unsigned pending, const struct regex_context *context)
{
    unsigned active = 0;

    run->round++;
    if (run->round == 0) { /* once in four thousand million characters */
        memset(run->seen, 0, sizeof run->seen);
        run->round = 1;
    }
    for (unsigned i = 0; i < pending; i++) {
        unsigned depth = 0;

        if (run->seen[run->pending[i]] == run->round)
            continue;
        run->seen[run->pending[i]] = run->round;
        run->stack[depth++] = run->pending[i];
        while (depth > 0) {
            uint16_t at = run->stack[--depth];
            const struct regex_step *step = &regex->steps[at];
            int ways[2], count = 0;

            if (step->op == STEP_MATCH)
                return -1;
            if (step->op == STEP_SPLIT) {
                ways[count++] = at + step->first;
                ways[count++] = at + step->second;
            } else if (step->op == STEP_JUMP) {
                ways[count++] = at + step->first;
            } else if (step->op == STEP_ASSERT) {
                if (assertion_holds(step->value, context))
                    ways[count++] = at + 1;
            } else {
                run->active[active++] = at;
            }
            for (int w = 0; w < count; w++)
                if (run->seen[ways[w]] != run->round) {
                    run->seen[ways[w]] = run->round;
                    run->stack[depth++] = (uint16_t)ways[w];
                }
        }
    }
    return (int)active;
}

bool regex_search(const struct regex *regex, struct regex_run *run, const uint8_t *text, size_t length)
{
    struct regex_context context = {.before = UINT32_MAX, .after = UINT32_MAX, .last = false};
    unsigned pending = 0;
    size_t at = 0;

    if (regex->literal_length > 0) {
        if (!find_bytes(text, length, regex->literal, regex->literal_length))
            return false;
        if (regex->only_literal)
            return true;
    }
    for (;;) {
        size_t size = 0;
        int active;

        if (pending == 0 && regex->skips) {
            size_t begin = at;

            while (at < length && !(regex->begins[text[at] / 32] >> text[at] % 32 & 1))
                at++;
            if (at == length)
                return false;
            if (at > begin) /* what lies before matters only if it is ASCII, and then it is its last byte */
                context.before = text[at - 1];
        }
        if (at < length) {
            size = utf8_next(text + at, length - at, &context.after);
            context.last = at + size == length;
        } else {
            context.after = UINT32_MAX;
        }
        run->pending[pending++] = 0; /* a match may begin here */
        active = run_follow(regex, run, pending, &context);
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
