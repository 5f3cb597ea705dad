#include "regex.h"

#include "tiny.h"
#include "utf8.h"

/* There is no tree. The parser writes steps as it reads, and a quantifier moves or repeats the block of steps before
 * it. Jumps are relative, so a block means the same at any place. The kind of the last block decides whether a
 * quantifier may follow.
 *
 * The first refusal counts. It moves the parser to the pattern's end, so no caller has to check for one. */

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

static void refuse_at(struct regex_parser *p, const char *what, size_t at)
{
    if (!p->error->what)
        *p->error = (struct regex_error){what, at};
    p->at = p->length;
}

static void refuse(struct regex_parser *p, const char *what)
{
    refuse_at(p, what, p->at);
}

static bool pattern_more(const struct regex_parser *p)
{
    return p->at < p->length;
}

/* The next byte, which stays; 0 at the end. */
static uint8_t pattern_peek(const struct regex_parser *p)
{
    return pattern_more(p) ? p->text[p->at] : 0;
}

static bool pattern_follows(const struct regex_parser *p, const char *text)
{
    size_t size = strlen(text);
    return p->length - p->at >= size && !memcmp(p->text + p->at, text, size);
}

static bool pattern_take(struct regex_parser *p, const char *text)
{
    bool follows = pattern_follows(p, text);
    p->at += follows ? strlen(text) : 0;
    return follows;
}

/* There is one. */
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
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

static bool is_word(uint32_t c)
{
    return is_letter(c) || is_digit(c) || c == '_';
}

static uint32_t folded(uint32_t c)
{
    return is_letter(c) ? c | 32 : c;
}

/* Keeps the longest run of literals: memmem finds it faster than any machine. */
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

/* `first` and `second` of a split; of others, 0. */
static void step_emit(struct regex_parser *p, enum step_op op, uint32_t value, int first, int second)
{
    if (p->regex->step_count == REGEX_STEPS)
        return refuse(p, "pattern too large");
    p->regex->steps[p->regex->step_count++] = (struct regex_step){(uint8_t)op, value, (int16_t)first, (int16_t)second};
}

static void piece_atom(struct regex_parser *p, enum step_op op, uint32_t value)
{
    p->atom = p->regex->step_count;
    p->last = PIECE_ATOM;
    step_emit(p, op, value, 0, 0);
}

static void piece_literal(struct regex_parser *p, uint32_t c)
{
    literal_add(p, c);
    if ((p->flags & IGNORE_CASE) && is_letter(c))
        piece_atom(p, STEP_FOLDED, folded(c));
    else
        piece_atom(p, STEP_LITERAL, c);
}

static void piece_position(struct regex_parser *p, enum assertion assertion)
{
    literal_none(p);
    p->last = PIECE_POSITION;
    step_emit(p, STEP_ASSERT, assertion, 0, 0);
}

/* A split in front of the steps from `at` on: into them, or `second` on. */
static void step_insert(struct regex_parser *p, uint16_t at, int second)
{
    struct regex_step *steps = p->regex->steps;
    step_emit(p, STEP_SPLIT, 0, 0, 0);
    if (p->error->what)
        return;
    memmove(&steps[at + 1], &steps[at], (size_t)(p->regex->step_count - 1 - at) * sizeof *steps);
    steps[at] = (struct regex_step){STEP_SPLIT, 0, 1, (int16_t)second};
}

/* sets */

static struct regex_set *set_new(struct regex_parser *p)
{
    struct regex *regex = p->regex;
    if (regex->set_count == REGEX_SETS)
        refuse(p, "too many sets");
    else
        regex->sets[regex->set_count++] = (struct regex_set){.first = regex->range_count};
    return &regex->sets[regex->set_count - 1];
}

static void piece_of_set(struct regex_parser *p, struct regex_set *set, bool negated)
{
    set->negated = negated;
    for (unsigned i = 0; negated && i < 4; i++)
        set->ascii[i] = ~set->ascii[i];
    literal_none(p);
    piece_atom(p, STEP_SET, (uint32_t)(set - p->regex->sets));
}

static void set_bit(struct regex_set *set, uint32_t c)
{
    set->ascii[c / 32] |= 1u << c % 32;
}

/* Ranges are sorted and don't touch, for binary search. This joins touching ones. */
static void set_add(struct regex_parser *p, struct regex_set *set, uint32_t low, uint32_t high)
{
    struct regex_range *ranges = &p->regex->ranges[set->first];
    unsigned at = 0, behind;
    for (uint32_t c = low; c <= high && c < 128; c++) {
        set_bit(set, c);
        if ((p->flags & IGNORE_CASE) && is_letter(c))
            set_bit(set, c ^ 32);
    }
    if (high < 128)
        return;
    low = low < 128 ? 128 : low;
    while (at < set->count && ranges[at].high + 1 < low)
        at++;
    for (behind = at; behind < set->count && ranges[behind].low <= high + 1; behind++) {
        low = ranges[behind].low < low ? ranges[behind].low : low;
        high = ranges[behind].high > high ? ranges[behind].high : high;
    }
    must(at < behind || p->regex->range_count < REGEX_RANGES); /* no pattern has room for so many */
    memmove(&ranges[at + 1], &ranges[behind], (set->count - behind) * sizeof *ranges);
    ranges[at] = (struct regex_range){low, high};
    set->count = (uint16_t)(set->count + 1 + at - behind);
    p->regex->range_count = (uint16_t)(set->first + set->count);
}

/* \d \s \w and their opposites. False: `letter` is none of them. */
static bool set_class(struct regex_parser *p, struct regex_set *set, uint32_t letter)
{
    uint32_t kind = letter | 32;
    bool opposite = letter < 'a';
    if (kind != 'd' && kind != 's' && kind != 'w')
        return false;
    for (uint32_t c = 0; c < 128; c++) {
        bool in = kind == 'd' ? is_digit(c) : kind == 'w' ? is_word(c) : c == ' ' || (c >= '\t' && c <= '\r');
        if (in != opposite)
            set_bit(set, c);
    }
    if (opposite)
        set_add(p, set, 128, 0x10ffff);
    return true;
}

static bool regex_set_holds(const struct regex *regex, const struct regex_set *set, uint32_t c)
{
    const struct regex_range *ranges = &regex->ranges[set->first];
    unsigned low = 0, high = set->count;
    if (c < 128)
        return set->ascii[c / 32] >> c % 32 & 1;
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

static uint32_t escape_hexadecimal(struct regex_parser *p, unsigned digits, size_t start)
{
    uint32_t value = 0;
    for (; digits; digits--, p->at++) {
        uint32_t c = folded(pattern_peek(p));
        if (!is_digit(c) && !(c >= 'a' && c <= 'f'))
            return refuse_at(p, "incomplete escape", start), 0;
        value = value << 4 | (is_digit(c) ? c - '0' : c - 'a' + 10);
    }
    if (value > 0x10ffff)
        return refuse_at(p, "escape of no character", start), 0;
    return value;
}

/* Of at most three digits. The first is the number `value`, and has been read. */
static uint32_t escape_octal(struct regex_parser *p, uint32_t value, size_t start)
{
    for (int most = 2; most && (pattern_peek(p) & 0xf8) == '0'; most--)
        value = value << 3 | (uint32_t)(p->text[p->at++] - '0');
    if (value > 0xff)
        return refuse_at(p, "escape of no character", start), 0;
    return value;
}

/* An escape that stands for one character; `c` follows the backslash and has been read. */
static uint32_t escape_character(struct regex_parser *p, uint32_t c, size_t start)
{
    static const char letters[] = "tnrfva", meanings[] = "\t\n\r\f\v\a";
    for (unsigned i = 0; letters[i]; i++)
        if (c == (uint8_t)letters[i])
            return (uint8_t)meanings[i];
    if (c == 'x' || c == 'u' || c == 'U')
        return escape_hexadecimal(p, c == 'x' ? 2 : c == 'u' ? 4 : 8, start);
    if (is_letter(c) || is_digit(c))
        refuse_at(p, c == 'N' ? "character by name (\\N)" : "unknown escape", start);
    return c;
}

static void piece_escape(struct regex_parser *p)
{
    size_t start = p->at - 1;
    if (!pattern_more(p))
        return refuse_at(p, "backslash at the end", start);
    uint32_t c = pattern_next(p);
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
        (void)set_class(p, set, c);
        return piece_of_set(p, set, false);
    }
    default:
        break;
    }
    bool octal = c >= '1' && c <= '7' && p->length - p->at >= 2 && (p->text[p->at] & 0xf8) == '0' && (p->text[p->at + 1] & 0xf8) == '0';
    if (c == '0' || octal)
        return piece_literal(p, escape_octal(p, c - '0', start));
    if (is_digit(c))
        return refuse_at(p, "back reference", start);
    piece_literal(p, escape_character(p, c, start));
}

/* One member of a set: a character; or true, a class, which is added at once. */
static bool set_member(struct regex_parser *p, struct regex_set *set, uint32_t *character)
{
    size_t start = p->at;
    uint32_t c = *character = pattern_next(p);
    if (c == '[' && (pattern_follows(p, ":") || pattern_follows(p, ".") || pattern_follows(p, "=")))
        refuse_at(p, "POSIX class ([:name:])", start);
    if (c != '\\')
        return false;
    if (!pattern_more(p))
        return refuse_at(p, "set without an end", start), false;
    c = pattern_next(p);
    if (set_class(p, set, c))
        return true;
    *character = c == 'b' ? '\b' : c >= '0' && c <= '7' ? escape_octal(p, c - '0', start) : escape_character(p, c, start);
    return false;
}

static void piece_set(struct regex_parser *p)
{
    size_t start = p->at - 1;
    struct regex_set *set = set_new(p);
    bool negated = pattern_take(p, "^");
    for (bool first = true; first || !pattern_take(p, "]"); first = false) {
        uint32_t low, high;
        size_t here = p->at;
        if (!pattern_more(p))
            return refuse_at(p, "set without an end", start);
        bool class = set_member(p, set, &low);
        if (pattern_follows(p, "-]") || !pattern_take(p, "-")) {
            if (!class)
                set_add(p, set, low, low);
            continue;
        }
        if (!pattern_more(p))
            return refuse_at(p, "set without an end", start);
        if (set_member(p, set, &high) || class || high < low)
            return refuse_at(p, "range that is none", here);
        set_add(p, set, low, high);
    }
    piece_of_set(p, set, negated);
}

/* repetition */

static bool bound(struct regex_parser *p, uint32_t *value)
{
    bool any = false;
    for (*value = 0; is_digit(pattern_peek(p)); p->at++, any = true)
        *value = *value >= MANY_TIMES ? MANY_TIMES : *value * 10 + (uint32_t)(p->text[p->at] - '0');
    return any;
}

/* Reads `{m,n}` after its `{`. False: it isn't a repetition, and the brace is a literal. */
static bool bounds(struct regex_parser *p, uint32_t *least, uint32_t *most)
{
    size_t start = p->at;
    bool some = bound(p, least);
    *most = *least;
    if (pattern_take(p, ",")) {
        if (!bound(p, most))
            *most = UINT32_MAX;
        some = true;
    }
    if (some && pattern_take(p, "}"))
        return true;
    p->at = start;
    return false;
}

static void step_copy(struct regex_parser *p, int from, uint16_t size)
{
    struct regex *regex = p->regex;
    memcpy(&regex->steps[regex->step_count], &regex->steps[from], size * sizeof regex->steps[0]);
    regex->step_count = (uint16_t)(regex->step_count + size);
}

/* Repeats the last block. */
static void step_repeat(struct regex_parser *p, uint32_t least, uint32_t most)
{
    struct regex *regex = p->regex;
    uint16_t start = p->atom, size = (uint16_t)(regex->step_count - start);
    bool endless = most == UINT32_MAX;
    uint64_t steps = (uint64_t)least * size;
    p->last = PIECE_REPEAT;
    if (most == 0)
        regex->step_count = start;
    if (size == 0 || most == 0)
        return;
    steps += !endless ? (uint64_t)(most - least) * (size + 1u) : least == 0 ? size + 2u : 1u;
    if (start + steps > REGEX_STEPS)
        return refuse(p, "pattern too large");
    /* The block itself, wherever it now is, is the first of its copies. */
    int end = (int)(start + steps), block = start + (least == 0);
    if (least == 0)
        step_insert(p, start, end - start);
    for (uint32_t i = 1; i < least; i++)
        step_copy(p, block, size);
    if (endless)
        return step_emit(p, STEP_SPLIT, 0, -size, 1);
    for (uint32_t i = least == 0 ? 1 : least; i < most; i++) {
        step_emit(p, STEP_SPLIT, 0, 1, end - regex->step_count);
        step_copy(p, block, size);
    }
}

static void piece_repeat(struct regex_parser *p, char c)
{
    size_t start = p->at - 1;
    uint32_t least = c == '+', most = c == '?' ? 1 : UINT32_MAX;
    if (c == '{' && !bounds(p, &least, &most))
        return piece_literal(p, '{');
    if (most < least)
        return refuse_at(p, "repetition {m,n} with m > n", start);
    if (p->last == PIECE_NOTHING || p->last == PIECE_POSITION)
        return refuse_at(p, "repetition of nothing", start);
    if (p->last == PIECE_REPEAT)
        return refuse_at(p, "repetition of a repetition", start);
    if (pattern_take(p, "+"))
        return refuse_at(p, "possessive repetition", start);
    (void)pattern_take(p, "?"); /* lazy: it matches the same texts */
    p->literal_length = (uint8_t)(p->literal_length - p->last_length);
    literal_none(p);
    step_repeat(p, least, most);
}

/* groups */

static void group_open(struct regex_parser *p, uint8_t flags)
{
    if (p->depth == REGEX_DEPTH)
        return refuse(p, "groups nested too deeply");
    literal_none(p);
    p->groups[++p->depth] = (struct regex_group){p->regex->step_count, p->regex->step_count, NO_JUMP, p->flags};
    p->flags = flags;
    p->last = PIECE_NOTHING;
}

/* An alternative ends: the ones after it begin behind a jump to the group's end, which is not known yet. */
static void group_alternative(struct regex_parser *p)
{
    struct regex_group *group = &p->groups[p->depth];
    step_insert(p, group->alternative, p->regex->step_count - group->alternative + 2);
    step_emit(p, STEP_JUMP, group->ends, 0, 0);
    group->ends = (uint16_t)(p->regex->step_count - 1);
    group->alternative = p->regex->step_count;
    p->last = PIECE_NOTHING;
    literal_none(p);
    p->alternatives |= p->depth == 0;
}

static void group_close(struct regex_parser *p)
{
    const struct regex_group *group = &p->groups[p->depth];
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
static void group_flags(struct regex_parser *p, size_t start)
{
    uint8_t on = 0, off = 0;
    bool minus = false, some = false;
    for (;;) {
        uint32_t c = pattern_peek(p);
        if (c == 'x')
            return refuse_at(p, "verbose flag (?x)", start);
        if (c == 'u' || c == 'L')
            return refuse_at(p, "flag (?u) or (?L)", start);
        if (minus && c == 'a')
            return refuse_at(p, "flag (?-a)", start);
        if (c != '-' || minus) {
            if (!flag_of(c, minus ? &off : &on))
                break;
            some = true;
        } else {
            minus = true;
            some = false;
        }
        p->at++;
    }
    if (some && pattern_take(p, ":")) {
        if (on & off)
            return refuse_at(p, "flag that is on and off", start);
        return group_open(p, (uint8_t)((p->flags | on) & ~off));
    }
    if (!some || minus || !pattern_take(p, ")"))
        return refuse_at(p, "unknown group", start);
    if (p->begun)
        return refuse_at(p, "flags not at the beginning", start);
    p->flags |= on;
}

static void group_name(struct regex_parser *p, size_t start)
{
    size_t first = p->at;
    while (is_word(pattern_peek(p)))
        p->at++;
    if (p->at == first || is_digit(p->text[first]) || !pattern_take(p, ">"))
        refuse_at(p, "bad name of a group", start);
}

static void piece_group(struct regex_parser *p)
{
    static const struct {
        const char *begin, *what;
    } refused[] = {
        {"=", "look ahead"},      {"!", "look ahead"},   {"<=", "look behind"},      {"<!", "look behind"},
        {"<", "unknown group"},   {">", "atomic group"}, {"(", "conditional group"}, {"P=", "back reference"},
    };
    size_t start = p->at - 1;
    if (pattern_take(p, "?#")) {
        while (pattern_more(p) && !pattern_follows(p, ")"))
            p->at++;
        if (!pattern_take(p, ")"))
            refuse_at(p, "comment without an end", start);
        return;
    }
    if (pattern_take(p, "?P<")) {
        group_name(p, start);
    } else if (!pattern_take(p, "?:") && pattern_take(p, "?")) {
        for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
            if (pattern_follows(p, refused[i].begin))
                return refuse_at(p, refused[i].what, start);
        group_flags(p, start);
        p->begun |= p->depth > 0;
        return;
    }
    p->begun = true;
    group_open(p, p->flags);
}

static void pattern_piece(struct regex_parser *p)
{
    static const char special[] = "(|)\\[*+?{.^$";
    uint8_t c = p->text[p->at];
    p->begun |= c != '(';
    if (memchr(special, c, sizeof special - 1))
        p->at++;
    switch (c) {
    case '(':
        return piece_group(p);
    case '|':
        return group_alternative(p);
    case ')':
        if (p->depth == 0)
            return refuse_at(p, "parenthesis without its group", p->at - 1);
        literal_none(p);
        group_close(p);
        p->depth--;
        return;
    case '\\':
        return piece_escape(p);
    case '[':
        return piece_set(p);
    case '*':
    case '+':
    case '?':
    case '{':
        return piece_repeat(p, (char)c);
    case '.':
        literal_none(p);
        return piece_atom(p, p->flags & DOT_ALL ? STEP_ALL : STEP_ANY, 0);
    case '^':
        return piece_position(p, p->flags & MULTILINE ? AT_LINE_BEGIN : AT_TEXT_BEGIN);
    case '$':
        return piece_position(p, p->flags & MULTILINE ? AT_LINE_END : AT_DOLLAR);
    default:
        return piece_literal(p, pattern_next(p));
    }
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

/* Follows all paths from the `pending` states, and leaves the reading ones in `active`. Returns their number, or -1: a
 * match. Without a context all assertions hold. */
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
                if (!context || assertion_holds(step->value, context))
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

/* compiling */

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

/* Finds the possible beginnings: every reading step on a path from the first with all assertions true. */
static void find_begins(struct regex *regex)
{
    struct regex_run run;
    memset(&run, 0, sizeof run);
    int active = run_follow(regex, &run, 1, NULL);
    regex->skips = active >= 0;
    for (int i = 0; i < active; i++)
        begin_step(regex, &regex->steps[run.active[i]]);
}

bool regex_compile(struct regex *regex, const uint8_t *pattern, size_t length, struct regex_error *error)
{
    struct regex_parser p = {.text = pattern, .length = length, .regex = regex, .error = error, .plain = true};
    p.groups[0].ends = NO_JUMP;
    *error = (struct regex_error){NULL, 0};
    regex->step_count = regex->range_count = regex->set_count = 0;
    regex->literal_length = 0;
    memset(regex->begins, 0, sizeof regex->begins);
    if (length > REGEX_PATTERN)
        refuse_at(&p, "pattern too large", 0);
    while (pattern_more(&p))
        pattern_piece(&p);
    if (p.depth > 0)
        refuse(&p, "group without an end");
    literal_end(&p);
    if (!error->what)
        group_close(&p);
    step_emit(&p, STEP_MATCH, 0, 0, 0);
    if (error->what)
        return false;
    if (p.alternatives)
        regex->literal_length = 0;
    regex->only_literal = p.plain && regex->literal_length > 0;
    find_begins(regex);
    return true;
}
