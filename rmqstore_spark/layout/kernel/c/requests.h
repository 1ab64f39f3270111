/* Reads requests to send messages, as their frames came. Part of kernel.c.
 *
 * Only plain ones: what a frame has that is rare (another code, a delay, a transaction, a text that
 * is not ASCII) makes it odd, and its request is decoded and handled one by one.
 * Upstream: SendMessageRequestHeader, SendMessageRequestHeaderV2, SendMessageProcessor.
 */
#ifndef RMQSTORE_REQUESTS_H
#define RMQSTORE_REQUESTS_H

#define FRAME_HEAD 8
#define MOST_HEADER (1 << 18) /* bytes; a longer one is none */
#define SEND_MESSAGE 10
#define SEND_MESSAGE_V2 310
#define SEND_BATCH_MESSAGE 320
#define ONE_WAY 2
#define MOST_FIELDS 24 /* of a plain frame */

typedef struct {
    const uint8_t *text;
    Py_ssize_t size;
    int escaped; /* it holds escapes of JSON */
} Text;

/* A plain request. A bit of `given` for each field that was there, by its letter. `names` tells
 * how fields were named: by letters, by long names, or, in an odd one, by both. */
typedef struct {
    Text topic, properties;
    const uint8_t *body;
    Py_ssize_t body_size;
    int64_t code, queue_id, sys_flag, born, flag, times, opaque, flags, unused;
    uint32_t given;
    int names, is_binary;
} Request;

static int is_digits(const uint8_t *p, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (p[i] < '0' || p[i] > '9')
            return 0;
    return n > 0;
}

/* Read a number of up to 18 digits, between two bounds. */
static int number_of(const Text *text, int64_t least, int64_t most, int64_t *found)
{
    const uint8_t *p = text->text;
    Py_ssize_t n = text->size;
    int negative = n > 0 && *p == '-';
    p += negative, n -= negative;
    if (text->escaped || n > 18 || !is_digits(p, n))
        return 0;
    int64_t value = 0;
    while (n--)
        value = 10 * value + (*p++ - '0');
    *found = negative ? -value : value;
    return *found >= least && *found <= most;
}

static int is_text(const Text *text, const char *wanted)
{
    size_t n = strlen(wanted);
    return !text->escaped && (size_t)text->size == n && memcmp(text->text, wanted, n) == 0;
}

/* SEND_MESSAGE has these names, and the others the letters a to n. */
static const char *const LONG_NAMES[] = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
    "batch", "brokerName"};
#define LETTERS ((int)(sizeof LONG_NAMES / sizeof *LONG_NAMES))
enum { USES_LETTERS = 1, USES_LONG_NAMES = 2 };

/* Return which field of a request to send has a name; LETTERS for none. */
static int field_of(const Text *name)
{
    int which = 0;
    if (name->size == 1)
        return *name->text >= 'a' && *name->text < 'a' + LETTERS ? *name->text - 'a' : LETTERS;
    while (which < LETTERS && !is_text(name, LONG_NAMES[which]))
        which++;
    return which;
}

/* Take a field of the header's own; fields that decide nothing are passed over. */
static int take_field(Request *r, const Text *name, const Text *value)
{
    if (name->escaped)
        return 0;
    int which = field_of(name);
    if (which == LETTERS)
        return 1;
    if (r->given & 1u << which)
        return 0;
    r->given |= 1u << which;
    r->names |= name->size == 1 ? USES_LETTERS : USES_LONG_NAMES;
    switch ('a' + which) {
    case 'b':
        r->topic = *value;
        return !value->escaped;
    case 'd':
        return number_of(value, INT32_MIN, INT32_MAX, &r->unused);
    case 'e':
        return number_of(value, INT32_MIN, INT32_MAX, &r->queue_id);
    case 'f':
        return number_of(value, INT32_MIN, INT32_MAX, &r->sys_flag);
    case 'g':
        return number_of(value, INT64_MIN, INT64_MAX, &r->born);
    case 'h':
        return number_of(value, INT32_MIN, INT32_MAX, &r->flag);
    case 'i':
        r->properties = *value;
        return 1;
    case 'j':
        return number_of(value, 0, INT32_MAX, &r->times);
    case 'l':
        return number_of(value, INT32_MIN, INT32_MAX, &r->unused);
    default:
        return 1;
    }
}

#define FIELD(letter) (1u << (letter - 'a'))
#define NEEDED (FIELD('b') | FIELD('e') | FIELD('f') | FIELD('g') | FIELD('h'))

/* ---- JSON: what clients write, and not all that it allows */

static const uint8_t *spaces(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* Pass a character that must come next, and the spaces around it. */
static const uint8_t *past(const uint8_t *p, const uint8_t *end, uint8_t wanted)
{
    p = p ? spaces(p, end) : NULL;
    return p && p < end && *p == wanted ? spaces(p + 1, end) : NULL;
}

static int hex_of(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Return the last character of the escape that begins here; NULL if it is none. */
static const uint8_t *escaped(const uint8_t *p, const uint8_t *end)
{
    if (end - p < 2 || p[1] == 0)
        return NULL;
    if (strchr("\"\\/bfnrt", p[1]))
        return p + 1;
    if (p[1] != 'u' || end - p < 6)
        return NULL;
    for (int i = 2; i < 6; i++)
        if (hex_of(p[i]) < 0)
            return NULL;
    return p + 5;
}

/* Read a text of ASCII; return what follows, or NULL. */
static const uint8_t *quoted(const uint8_t *p, const uint8_t *end, Text *text)
{
    if (!p || p >= end || *p != '"')
        return NULL;
    text->text = ++p;
    text->escaped = 0;
    for (; p < end && *p != '"'; p++) {
        if (*p < ' ' || *p >= 0x7F)
            return NULL;
        if (*p == '\\') {
            text->escaped = 1;
            if (!(p = escaped(p, end)))
                return NULL;
        }
    }
    if (p >= end)
        return NULL;
    text->size = p - text->text;
    return p + 1;
}

/* Read a whole number as a text; return what follows, or NULL. */
static const uint8_t *digits(const uint8_t *p, const uint8_t *end, Text *text)
{
    if (!p || p >= end)
        return NULL;
    text->text = p;
    text->escaped = 0;
    p += *p == '-';
    const uint8_t *first = p;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    text->size = p - text->text;
    if (p == first || (*first == '0' && (p - first > 1 || first > text->text)))
        return NULL;
    return p;
}

/* Read a number, true or false as a text, as clients in other languages write them. */
static const uint8_t *word(const uint8_t *p, const uint8_t *end, Text *text)
{
    for (int yes = 0; p && yes < 2; yes++) {
        const char *name = yes ? "true" : "false";
        Py_ssize_t size = (Py_ssize_t)strlen(name);
        if (end - p >= size && memcmp(p, name, (size_t)size) == 0) {
            *text = (Text){p, size, 0};
            return p + size;
        }
    }
    return digits(p, end, text);
}

static const uint8_t *json_fields(const uint8_t *p, const uint8_t *end, Request *r)
{
    int count = 0;
    if (!(p = past(p, end, '{')))
        return NULL;
    if (p < end && *p == '}')
        return p + 1;
    for (;;) {
        Text name = {0}, value = {0};
        if (!(p = past(quoted(p, end, &name), end, ':')))
            return NULL;
        p = p < end && *p == '"' ? quoted(p, end, &value) : word(p, end, &value);
        if (!p || ++count > MOST_FIELDS || !take_field(r, &name, &value))
            return NULL;
        p = spaces(p, end);
        if (p < end && *p == '}')
            return p + 1;
        if (!(p = past(p, end, ',')))
            return NULL;
    }
}

static const char *const NAMES[] = {"code", "flag", "opaque", "version", "extFields", "language",
                                    "serializeTypeCurrentRPC", "remark"};
enum { CODE, FLAG, OPAQUE, VERSION, EXT_FIELDS, LANGUAGE, TYPE, REMARK, NAMES_N };

static int read_json(const uint8_t *p, const uint8_t *end, Request *r)
{
    int seen = 0;
    p = past(p, end, '{');
    while (p) {
        Text name = {0}, value = {0};
        int which = 0;
        if (!(p = past(quoted(p, end, &name), end, ':')))
            return 0;
        while (which < NAMES_N && !is_text(&name, NAMES[which]))
            which++;
        if (which == NAMES_N || seen & 1 << which)
            return 0;
        seen |= 1 << which;
        if (which == EXT_FIELDS) {
            p = json_fields(p, end, r);
        } else if (which > EXT_FIELDS) {
            p = quoted(p, end, &value);
            if (which == REMARK && value.size > 0) /* clients in C++ write an empty one */
                return 0;
        } else {
            int64_t *to = which == CODE ? &r->code : which == FLAG ? &r->flags
                        : which == OPAQUE ? &r->opaque : &r->unused;
            p = digits(p, end, &value);
            if (p && !number_of(&value, INT32_MIN, INT32_MAX, to))
                return 0;
        }
        if (!p)
            return 0;
        p = spaces(p, end);
        if (p < end && *p == '}')
            return spaces(p + 1, end) == end && seen & 1 << OPAQUE;
        p = past(p, end, ',');
    }
    return 0;
}

/* ---- RocketMQ's binary header */

#define BINARY_HEAD 13 /* code 2, language 1, version 2, opaque 4, flag 4 */

static int is_ascii_text(const uint8_t *p, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (p[i] >= 0x7F)
            return 0;
    return 1;
}

static int read_binary(const uint8_t *p, const uint8_t *end, Request *r)
{
    if (end - p < BINARY_HEAD + 8)
        return 0;
    r->code = (int16_t)(p[0] << 8 | p[1]);
    r->opaque = (int32_t)be32(p + 5);
    r->flags = (int32_t)be32(p + 9);
    if (be32(p + BINARY_HEAD) != 0 || be32(p + BINARY_HEAD + 4) != end - p - BINARY_HEAD - 8)
        return 0;
    p += BINARY_HEAD + 8;
    for (int count = 0; p < end; count++) {
        Text name = {0}, value = {0};
        if (count == MOST_FIELDS || end - p < 2)
            return 0;
        name.size = (int16_t)(p[0] << 8 | p[1]);
        name.text = p += 2;
        if (name.size < 0 || name.size > end - p - 4)
            return 0;
        p += name.size;
        value.size = (int32_t)be32(p);
        value.text = p += 4;
        if (value.size < 0 || value.size > end - p || !is_ascii_text(name.text, name.size) ||
            !is_ascii_text(value.text, value.size))
            return 0;
        p += value.size;
        if (!take_field(r, &name, &value))
            return 0;
    }
    return 1;
}

/* Return whether the names of the header's fields are those of its code. */
static int is_send(const Request *r)
{
    if (r->code == SEND_MESSAGE)
        return r->names == USES_LONG_NAMES;
    return (r->code == SEND_MESSAGE_V2 || r->code == SEND_BATCH_MESSAGE) && r->names == USES_LETTERS;
}

/* Read a frame that is complete; return whether it is a plain request. */
static int read_request(const uint8_t *frame, Py_ssize_t size, Request *r)
{
    memset(r, 0, sizeof *r);
    if (size < FRAME_HEAD)
        return 0;
    int64_t header = be32(frame + 4) & 0xFFFFFF, form = frame[4];
    if (form > 1 || header > size - FRAME_HEAD)
        return 0;
    const uint8_t *begin = frame + FRAME_HEAD, *end = begin + header;
    r->is_binary = form == 1;
    r->body = end;
    r->body_size = size - FRAME_HEAD - header;
    int found = r->is_binary ? read_binary(begin, end, r) : read_json(begin, end, r);
    return found && is_send(r) && (r->flags == 0 || r->flags == ONE_WAY) &&
           (r->given & NEEDED) == NEEDED && r->topic.size > 0;
}

static PyObject *plain_sends(PyObject *self, PyObject *args)
{
    PyObject *frames, *found;
    Py_ssize_t most, at = 0;
    if (!PyArg_ParseTuple(args, "On", &frames, &most))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, frames, 0)
    found = PyList_New(0);
    while (found && data_n - at >= FRAME_HEAD) {
        const uint8_t *frame = data + at;
        int64_t size = 4 + (int64_t)(int32_t)be32(frame);
        Request r;
        if (size > data_n - at || size > most || (be32(frame + 4) & 0xFFFFFF) > MOST_HEADER ||
            !read_request(frame, size, &r))
            break;
        PyObject *one = Py_BuildValue("y#iiiis#", (const char *)frame, (Py_ssize_t)size,
                                      (int)r.code, (int)r.opaque, (int)r.flags, r.is_binary,
                                      (const char *)r.topic.text, r.topic.size);
        if (!one || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
        at += size;
    }
    release(&views);
    return found ? Py_BuildValue("Nn", found, at) : NULL;
}

#endif
