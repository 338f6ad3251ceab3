/* The ordinary event of a token: `data: {...}` and a blank line, one choice with text, perhaps its ids and usage.

   Only strict JSON is ordinary, with no key twice that matters, and nothing that could mean something else: an error, a finish
   reason, a count that is no count. Whatever is not is for sse.py and completion.py, which understand it with care. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { DEPTH = 32, LONG_NUMBER = 40, BEFORE = 6, AFTER = 2 };
#define MOST_COUNTED 2147483648LL

typedef struct {
    const unsigned char *at, *end;
} Input;

typedef struct {
    const unsigned char *from;
    size_t length;
    int escaped;
} String;

/* What was found; -1 where it was not. */
typedef struct {
    int64_t choices, text, delta, content, ids, usage, used, prompt;
} Found;

/* One member of an object, from its value on: 0 where the event is not ordinary. */
typedef int (*Member)(Input *in, String key, int depth, Found *found);

static int value(Input *in, int depth);

static void skip_space(Input *in) {
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\t')) in->at++;
}

static int next_is(Input *in, char wanted) {
    skip_space(in);
    if (in->at == in->end || *in->at != wanted) return 0;
    in->at++;
    return 1;
}

static int literal(Input *in, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(in->end - in->at) < length || memcmp(in->at, word, length)) return 0;
    in->at += length;
    return 1;
}

/* ---- Strings and numbers --------------------------------------------------------------------------------------- */

static int is_hex(unsigned char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

static int escape(Input *in) {
    if (in->at == in->end) return 0;
    unsigned char c = *in->at++;
    if (c != 'u') return c && strchr("\"\\/bfnrt", c) != NULL;
    for (int i = 0; i < 4; i++, in->at++)
        if (in->at == in->end || !is_hex(*in->at)) return 0;
    return 1;
}

/* The bytes after the first one, `c`, of a character in UTF-8. */
static int character(Input *in, unsigned char c) {
    int more = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
    if (!more || in->end - in->at < more) return 0;
    unsigned char next = *in->at;
    if ((c == 0xE0 && next < 0xA0) || (c == 0xED && next > 0x9F) || (c == 0xF0 && next < 0x90) || (c == 0xF4 && next > 0x8F))
        return 0;
    for (int i = 0; i < more; i++)
        if ((*in->at++ & 0xC0) != 0x80) return 0;
    return 1;
}

static int string(Input *in, String *found) {
    if (!next_is(in, '"')) return 0;
    *found = (String){in->at, 0, 0};
    while (in->at < in->end) {
        unsigned char c = *in->at++;
        if (c == '"') {
            found->length = in->at - 1 - found->from;
            return 1;
        }
        if (c == '\\') {
            found->escaped = 1;
            if (!escape(in)) return 0;
        } else if (c < 0x20 || (c >= 0x80 && !character(in, c)))
            return 0;
    }
    return 0;
}

static int is(String string, const char *word) {
    return (size_t)string.length == strlen(word) && !memcmp(string.from, word, string.length);
}

static int digits(Input *in) {
    const unsigned char *from = in->at;
    while (in->at < in->end && *in->at >= '0' && *in->at <= '9') in->at++;
    return in->at > from;
}

static int any_number(Input *in) {
    if (in->at < in->end && *in->at == '-') in->at++;
    if (in->at < in->end && *in->at == '0') in->at++;
    else if (!digits(in)) return 0;
    if (in->at < in->end && *in->at == '.') {
        in->at++;
        if (!digits(in)) return 0;
    }
    if (in->at < in->end && (*in->at | 32) == 'e') {
        in->at++;
        if (in->at < in->end && (*in->at == '+' || *in->at == '-')) in->at++;
        return digits(in);
    }
    return 1;
}

/* A very long one may be more than a parser takes. */
static int number(Input *in) {
    const unsigned char *from = in->at;
    return any_number(in) && in->at - from <= LONG_NUMBER;
}

/* A count of tokens. What follows it is looked at by who reads on, so a fraction is refused there. */
static int count(Input *in, int64_t *found) {
    skip_space(in);
    const unsigned char *from = in->at;
    if (!digits(in) || in->at - from > 10 || (*from == '0' && in->at - from > 1)) return 0;
    *found = 0;
    for (const unsigned char *c = from; c < in->at; c++) *found = *found * 10 + (*c - '0');
    return *found < MOST_COUNTED;
}

/* ---- Objects and arrays ---------------------------------------------------------------------------------------- */

static int object(Input *in, int depth, Member member, Found *found) {
    if (!depth || !next_is(in, '{')) return 0;
    if (next_is(in, '}')) return 1;
    do {
        String key;
        if (!string(in, &key) || key.escaped || !next_is(in, ':')) return 0;
        if (!(member ? member(in, key, depth - 1, found) : value(in, depth - 1))) return 0;
    } while (next_is(in, ','));
    return next_is(in, '}');
}

/* The number of its elements, or -1. */
static int64_t array(Input *in, int depth) {
    int64_t length = 0;
    if (!depth || !next_is(in, '[')) return -1;
    if (next_is(in, ']')) return 0;
    do {
        if (!value(in, depth - 1)) return -1;
        length++;
    } while (next_is(in, ','));
    return next_is(in, ']') ? length : -1;
}

static int value(Input *in, int depth) {
    String ignored;
    skip_space(in);
    switch (in->at < in->end ? *in->at : 0) {
    case '"': return string(in, &ignored);
    case '{': return object(in, depth, NULL, NULL);
    case '[': return array(in, depth) >= 0;
    case 't': return literal(in, "true");
    case 'f': return literal(in, "false");
    case 'n': return literal(in, "null");
    default: return number(in);
    }
}

/* ---- What an event of a token is made of ----------------------------------------------------------------------- */

/* Is this the first time that it is met? What is null counts as not there, but twice is no longer ordinary. */
static int once(int64_t *found) {
    if (*found >= 0) return 0;
    *found = 0;
    return 1;
}

static int null(Input *in) {
    skip_space(in);
    return literal(in, "null");
}

static int text(Input *in, int64_t *found) {
    String text;
    if (!string(in, &text)) return 0;
    *found = text.length;
    return 1;
}

static int delta_member(Input *in, String key, int depth, Found *found) {
    if (is(key, "content")) return once(&found->content) && (null(in) || text(in, &found->content));
    return value(in, depth);
}

static int choice_member(Input *in, String key, int depth, Found *found) {
    if (is(key, "text")) return once(&found->text) && (null(in) || text(in, &found->text));
    if (is(key, "delta")) return once(&found->delta) && (null(in) || object(in, depth, delta_member, found));
    if (is(key, "token_ids")) return once(&found->ids) && (null(in) || (found->ids = array(in, depth)) >= 0);
    if (is(key, "finish_reason")) return null(in);
    return value(in, depth);
}

static int usage_member(Input *in, String key, int depth, Found *found) {
    if (is(key, "completion_tokens")) return once(&found->used) && count(in, &found->used);
    if (is(key, "prompt_tokens")) return once(&found->prompt) && count(in, &found->prompt);
    return value(in, depth);
}

static int message_member(Input *in, String key, int depth, Found *found) {
    String kind;
    if (is(key, "choices"))
        return once(&found->choices) && next_is(in, '[') && object(in, depth - 1, choice_member, found) && next_is(in, ']');
    if (is(key, "usage"))
        return once(&found->usage) && (null(in) || (object(in, depth, usage_member, found) && found->used >= 0));
    if (is(key, "object")) return string(in, &kind) && !kind.escaped && !is(kind, "error");
    return !is(key, "error") && value(in, depth);
}

/* 1 where this is an ordinary event, and what was found in it; else 0. */
static int ordinary(const char *data, size_t size, Found *found) {
    const unsigned char *from = (const unsigned char *)data, *end = from + size;
    if (size < BEFORE + AFTER || memcmp(from, "data: ", BEFORE) || end[-1] != '\n' || end[-2] != '\n') return 0;
    Input in = {from + BEFORE, end - AFTER};
    *found = (Found){-1, -1, -1, -1, -1, -1, -1, -1};
    if (!object(&in, DEPTH, message_member, found)) return 0;
    skip_space(&in);
    return in.at == in.end && (found->text > 0 || found->content > 0);
}
