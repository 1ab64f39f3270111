/* Turns requests to send messages, as their frames came, into records and answers. Part of
 * kernel.c.
 *
 * Only plain ones: what a frame has that is rare (another code, a delay, a transaction, a text that
 * is not ASCII) makes it odd, and its request is decoded and handled one by one.
 * Upstream: SendMessageRequestHeaderV2, SendMessageProcessor.
 */
#ifndef RMQSTORE_SENDS_H
#define RMQSTORE_SENDS_H

#define FRAME_HEAD 8
#define SEND_MESSAGE_V2 310
#define SEND_BATCH_MESSAGE 320
#define ONE_WAY 2
#define MOST_FIELDS 24 /* of a plain frame */
#define SEPARATOR 2    /* between properties */
#define MOST_MESSAGES 4500 /* of a plain batch: their msgIds fit the header of an answer */

typedef struct {
    const uint8_t *text;
    Py_ssize_t size;
    int escaped; /* it holds escapes of JSON */
} Text;

/* A plain request. A bit of `given` for each field that was there, by its letter. */
typedef struct {
    Text topic, properties;
    const uint8_t *body;
    Py_ssize_t body_size;
    int64_t code, queue_id, sys_flag, born, flag, times, opaque, flags, unused;
    uint32_t given;
    int is_binary;
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

/* Take a field of the header's own; fields that decide nothing are passed over. */
static int take_field(Request *r, const Text *name, const Text *value)
{
    if (name->escaped)
        return 0;
    if (name->size != 1 || *name->text < 'a' || *name->text > 'n')
        return 1;
    uint32_t bit = 1u << (*name->text - 'a');
    if (r->given & bit)
        return 0;
    r->given |= bit;
    switch (*name->text) {
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

static int is_text(const Text *text, const char *wanted)
{
    size_t n = strlen(wanted);
    return !text->escaped && (size_t)text->size == n && memcmp(text->text, wanted, n) == 0;
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
        p = p < end && *p == '"' ? quoted(p, end, &value) : digits(p, end, &value);
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
                                    "serializeTypeCurrentRPC"};
enum { CODE, FLAG, OPAQUE, VERSION, EXT_FIELDS, LANGUAGE, TYPE, NAMES_N };

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
    return found && (r->code == SEND_MESSAGE_V2 || r->code == SEND_BATCH_MESSAGE) &&
           (r->flags == 0 || r->flags == ONE_WAY) && (r->given & NEEDED) == NEEDED &&
           r->topic.size > 0;
}

static PyObject *plain_send(PyObject *self, PyObject *args)
{
    PyObject *frame;
    if (!PyArg_ParseTuple(args, "O", &frame))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, frame, 0)
    Request r;
    PyObject *found = Py_None;
    if (read_request(data, data_n, &r))
        found = Py_BuildValue("iiii s#", (int)r.code, (int)r.opaque, (int)r.flags, r.is_binary,
                              (const char *)r.topic.text, r.topic.size);
    else
        Py_INCREF(found);
    release(&views);
    return found;
}

/* ---- records */

/* Write a text of JSON without its escapes; return its size, or -1 if it is not ASCII. */
static Py_ssize_t unescape(const Text *text, uint8_t *out)
{
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    const uint8_t *p = text->text, *end = p + text->size;
    uint8_t *to = out;
    if (text->size == 0)
        return 0;
    if (!text->escaped) {
        memcpy(out, p, (size_t)text->size);
        return text->size;
    }
    while (p < end) {
        if (*p != '\\') {
            *to++ = *p++;
            continue;
        }
        const char *found = strchr(FROM, p[1]);
        if (found) {
            *to++ = (uint8_t)TO[found - FROM];
            p += 2;
            continue;
        }
        if (p[1] != 'u' || end - p < 6 || p[2] != '0' || p[3] != '0')
            return -1;
        int high = hex_of(p[4]), low = hex_of(p[5]);
        if (high < 0 || high > 7 || low < 0)
            return -1;
        *to++ = (uint8_t)(high << 4 | low);
        p += 6;
    }
    return to - out;
}

static int begins(const uint8_t *p, Py_ssize_t n, const char *name)
{
    Py_ssize_t size = (Py_ssize_t)strlen(name);
    return n > size && memcmp(p, name, (size_t)size) == 0 && p[size] == 1;
}

static Py_ssize_t without_separators(const uint8_t *text, Py_ssize_t size)
{
    while (size > 0 && text[size - 1] == SEPARATOR)
        size--;
    return size;
}

/* Add the cluster's property behind others, which have no separator at their end. */
static Py_ssize_t add_cluster(uint8_t *text, Py_ssize_t size, const uint8_t *cluster,
                              Py_ssize_t cluster_size)
{
    if (size)
        text[size++] = SEPARATOR;
    memcpy(text + size, cluster, (size_t)cluster_size);
    return size + cluster_size;
}

/* Drop the properties that are not stored, and add the cluster's; return the size, or -1 if one
 * of them makes the message odd. In place: the cluster's has room behind the text. */
static Py_ssize_t store_properties(uint8_t *text, Py_ssize_t size, const uint8_t *cluster,
                                   Py_ssize_t cluster_size)
{
    uint8_t *to = text;
    for (Py_ssize_t at = 0; at < size;) {
        const uint8_t *part = text + at, *stop = memchr(part, SEPARATOR, (size_t)(size - at));
        Py_ssize_t n = stop ? stop - part : size - at;
        at += n + 1;
        if (begins(part, n, "DELAY") || begins(part, n, "TRAN_MSG") ||
            (n == 5 && memcmp(part, "DELAY", 5) == 0))
            return -1;
        if (n == 0 || begins(part, n, "WAIT") || begins(part, n, "CLUSTER"))
            continue;
        memmove(to, part, (size_t)n);
        to += n;
        *to++ = SEPARATOR;
    }
    return add_cluster(text, without_separators(text, to - text), cluster, cluster_size);
}

static int contains(const uint8_t *p, Py_ssize_t n, const char *wanted)
{
    Py_ssize_t size = (Py_ssize_t)strlen(wanted);
    const uint8_t *end = p + n;
    while (end - p >= size && (p = memchr(p, wanted[0], (size_t)(end - p - size + 1)))) {
        if (memcmp(p, wanted, (size_t)size) == 0)
            return 1;
        p++;
    }
    return 0;
}

/* Write the records of a batch. Each has its own properties before those that all share.
 *
 * text has the shared properties, and behind them room for as many again, and the longest.
 * Return the bytes of the records, or -1 if the batch is odd, or there is no room. */
static int64_t put_batch(const Request *r, NewRecord *record, uint8_t *text, Py_ssize_t shared,
                         uint8_t *out, int64_t room, int32_t most, int32_t *rows)
{
    int64_t written = 0;
    Py_ssize_t at = 0;
    uint8_t *joined = text + shared;
    Entry entry;
    if (contains(text, shared, "TRAN_MSG") || contains(r->body, r->body_size, "TRAN_MSG"))
        return -1;
    for (*rows = 0; at < r->body_size; at += entry.size, ++*rows) {
        if (*rows >= most || !read_entry(r->body, at, r->body_size, &entry))
            return -1;
        Py_ssize_t own = without_separators(r->body + entry.properties_at, entry.properties);
        memcpy(joined, r->body + entry.properties_at, (size_t)own);
        if (own)
            joined[own++] = SEPARATOR;
        memcpy(joined + own, text, (size_t)shared);
        record->body = r->body + entry.body_at;
        record->body_size = (int32_t)entry.body;
        record->flag = entry.flag;
        record->properties = joined;
        record->properties_size = (int32_t)(own + shared);
        int64_t size = put_record(record, out + written, room - written);
        if (size <= 0)
            return -1;
        written += size;
    }
    return *rows ? written : -1;
}

static PyObject *write_sends(PyObject *self, PyObject *args)
{
    PyObject *frames, *topics, *o[14];
    Py_ssize_t most_body, most_rows;
    if (!PyArg_ParseTuple(args, "O!O!nnOOOOOOOOOOOOOO", &PyList_Type, &frames, &PyDict_Type, &topics,
                          &most_body, &most_rows, &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7],
                          &o[8], &o[9], &o[10], &o[11], &o[12], &o[13]))
        return NULL;
    Views views = {.used = 0};
    TAKE(queue_nums, const int32_t, o[0], 0)
    TAKE(hosts, const uint8_t, o[1], 0)
    TAKE(wide, const uint8_t, o[2], 0)
    TAKE(store_host, const uint8_t, o[3], 0)
    TAKE(cluster, const uint8_t, o[4], 0)
    TAKE(counts, int32_t, o[5], 1)
    TAKE(asked, int32_t, o[6], 1)
    TAKE(opaques, int32_t, o[7], 1)
    TAKE(forms, uint8_t, o[8], 1)
    TAKE(queue_ids, int32_t, o[9], 1)
    TAKE(sizes, int32_t, o[10], 1)
    TAKE(rows, int32_t, o[11], 1)
    TAKE(text, uint8_t, o[12], 1)
    TAKE(out, uint8_t, o[13], 1)
    Py_ssize_t n = PyList_GET_SIZE(frames);
    int64_t at = 0, left = most_rows;
    REQUIRE(wide_n == n && hosts_n == HOST * n && opaques_n == n && forms_n == n &&
                queue_ids_n == n && sizes_n == n && rows_n == n && asked_n == counts_n &&
                counts_n == queue_nums_n,
            "the arrays differ in number")
    REQUIRE(store_host_n == 8 || store_host_n == 20, "a host has 8 or 20 bytes")
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *frame = PyList_GET_ITEM(frames, i);
        Request r;
        sizes[i] = rows[i] = 0;
        REQUIRE(PyBytes_Check(frame), "a frame is not bytes")
        if (!read_request((const uint8_t *)PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame), &r))
            continue;
        PyObject *topic = PyBytes_FromStringAndSize((const char *)r.topic.text, r.topic.size);
        PyObject *number = topic ? PyDict_GetItemWithError(topics, topic) : NULL;
        Py_XDECREF(topic);
        Py_ssize_t which = number ? PyLong_AsSsize_t(number) : -1;
        if (PyErr_Occurred()) {
            release(&views);
            return NULL;
        }
        if (which < 0 || which >= counts_n || r.queue_id < 0 || r.queue_id >= queue_nums[which] ||
            r.body_size > most_body)
            continue;
        int is_batch = r.code == SEND_BATCH_MESSAGE;
        Py_ssize_t most_text = r.properties.size + 1 + cluster_n;
        REQUIRE((is_batch ? 2 * most_text + LONGEST + 1 : most_text) <= text_n, SMALL)
        Py_ssize_t size = unescape(&r.properties, text);
        if (size >= 0 && is_batch)
            size = add_cluster(text, without_separators(text, size), cluster, cluster_n);
        else if (size >= 0)
            size = store_properties(text, size, cluster, cluster_n);
        if (size < 0 || left < 1)
            continue;
        NewRecord record = {
            .body = r.body, .body_size = (int32_t)r.body_size, .topic = r.topic.text,
            .topic_size = (int32_t)r.topic.size, .properties = text,
            .properties_size = (int32_t)size, .queue_id = (int32_t)r.queue_id,
            .flag = (int32_t)r.flag, .sys_flag = (int32_t)r.sys_flag, .times = (int32_t)r.times,
            .born = r.born, .born_host = hosts + HOST * i, .born_wide = wide[i],
            .stored_host = store_host, .stored_wide = store_host_n == 20, .magic = 0xDAA320A7u};
        int32_t found = 1;
        if (is_batch)
            record.times = 0;
        int32_t most = (int32_t)(left < MOST_MESSAGES ? left : MOST_MESSAGES);
        int64_t written = is_batch ? put_batch(&r, &record, text, size, out + at, out_n - at, most,
                                               &found)
                                   : put_record(&record, out + at, out_n - at);
        if (written <= 0 || written > INT32_MAX)
            continue;
        left -= found;
        rows[i] = found;
        sizes[i] = (int32_t)written;
        opaques[i] = (int32_t)r.opaque;
        forms[i] = (uint8_t)r.is_binary;
        queue_ids[i] = (int32_t)r.queue_id;
        counts[which] += found;
        asked[which]++;
        at += written;
    }
    release(&views);
    return PyLong_FromLongLong(at);
}

/* ---- answers */

static uint8_t *put_text(uint8_t *out, const char *text)
{
    size_t n = strlen(text);
    memcpy(out, text, n);
    return out + n;
}

static uint8_t *put_number(uint8_t *out, int64_t value)
{
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    const uint64_t billion = 1000000000;
    if (value < 0)
        *out++ = '-';
    if (left < billion)
        return put_decimal(out, (uint32_t)left);
    out = put_number(out, (int64_t)(left / billion));
    left %= billion;
    for (uint64_t digit = billion / 10; digit; digit /= 10)
        *out++ = (uint8_t)('0' + left / digit % 10);
    return out;
}

typedef struct {
    const uint8_t *host;
    Py_ssize_t host_size;
    int32_t opaque, version;
    const int64_t *physical; /* of each message */
    Py_ssize_t rows;
    int64_t queue_id, queue_offset;
} Answer;

static uint8_t *put_msg_ids(uint8_t *out, const Answer *a)
{
    for (Py_ssize_t row = 0; row < a->rows; row++) {
        if (row)
            *out++ = ',';
        for (Py_ssize_t at = 0; at < a->host_size; at += 4)
            out = put_hex(out, be32(a->host + at));
        out = put_hex(out, (uint32_t)((uint64_t)a->physical[row] >> 32));
        out = put_hex(out, (uint32_t)a->physical[row]);
    }
    return out;
}

static uint8_t *json_answer(uint8_t *out, const Answer *a)
{
    out = put_msg_ids(put_text(out, "{\"code\":0,\"extFields\":{\"msgId\":\""), a);
    out = put_number(put_text(out, "\",\"queueId\":\""), a->queue_id);
    out = put_number(put_text(out, "\",\"queueOffset\":\""), a->queue_offset);
    out = put_text(out, "\",\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\"},\"flag\":1,"
                        "\"language\":\"JAVA\",\"opaque\":");
    out = put_text(put_number(out, a->opaque), ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    return put_text(put_number(out, a->version), "}");
}

/* Begin a field of a binary header: its name, and room for the size of its value. */
static uint8_t *begin_field(uint8_t *out, const char *name)
{
    size_t n = strlen(name);
    *out++ = (uint8_t)(n >> 8);
    *out++ = (uint8_t)n;
    return put_text(out, name) + 4;
}

static uint8_t *end_field(uint8_t *begin, uint8_t *end)
{
    put32(begin - 4, (int32_t)(end - begin));
    return end;
}

static uint8_t *binary_answer(uint8_t *out, const Answer *a)
{
    uint8_t *value;
    out[0] = out[1] = 0;
    out[2] = 0; /* JAVA */
    out[3] = (uint8_t)(a->version >> 8);
    out[4] = (uint8_t)a->version;
    put32(out + 5, a->opaque);
    put32(out + 9, 1);
    put32(out + BINARY_HEAD, 0);
    uint8_t *fields = out += BINARY_HEAD + 8;
    value = begin_field(out, "msgId");
    out = end_field(value, put_msg_ids(value, a));
    value = begin_field(out, "queueId");
    out = end_field(value, put_number(value, a->queue_id));
    value = begin_field(out, "queueOffset");
    out = end_field(value, put_number(value, a->queue_offset));
    value = begin_field(out, "MSG_REGION");
    out = end_field(value, put_text(value, "DefaultRegion"));
    value = begin_field(out, "TRACE_ON");
    out = end_field(value, put_text(value, "true"));
    put32(fields - 4, (int32_t)(out - fields));
    return out;
}

#define MOST_ANSWER 384
#define MSG_ID 57 /* with a comma */

static PyObject *write_answers(PyObject *self, PyObject *args)
{
    PyObject *o[9];
    int version;
    if (!PyArg_ParseTuple(args, "iOOOOOOOOO", &version, &o[0], &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6], &o[7], &o[8]))
        return NULL;
    Views views = {.used = 0};
    TAKE(host, const uint8_t, o[0], 0)
    TAKE(opaques, const int32_t, o[1], 0)
    TAKE(forms, const uint8_t, o[2], 0)
    TAKE(queue_ids, const int32_t, o[3], 0)
    TAKE(rows, const int32_t, o[4], 0)
    TAKE(queue_offsets, const int64_t, o[5], 0)
    TAKE(physical, const int64_t, o[6], 0)
    TAKE(ends, int64_t, o[7], 1)
    TAKE(out, uint8_t, o[8], 1)
    Py_ssize_t n = ends_n, all = 0;
    REQUIRE((host_n == 8 || host_n == 20) && opaques_n == n && forms_n == n && queue_ids_n == n &&
                rows_n == n && queue_offsets_n == physical_n,
            "the arrays differ in number")
    for (Py_ssize_t i = 0; i < n; i++) {
        REQUIRE(rows[i] > 0 && rows[i] <= physical_n - all, "the arrays differ in number")
        all += rows[i];
    }
    REQUIRE(all == physical_n, "the arrays differ in number")
    REQUIRE(out_n >= n * MOST_ANSWER + all * MSG_ID, SMALL)
    uint8_t *to = out;
    for (Py_ssize_t i = 0, row = 0; i < n; row += rows[i++]) {
        Answer answer = {.host = host, .host_size = host_n, .opaque = opaques[i],
                         .version = version, .physical = physical + row, .rows = rows[i],
                         .queue_id = queue_ids[i], .queue_offset = queue_offsets[row]};
        uint8_t *header = to + FRAME_HEAD;
        uint8_t *end = forms[i] ? binary_answer(header, &answer) : json_answer(header, &answer);
        put32(to, (int32_t)(end - to - 4));
        put32(to + 4, (int32_t)(end - header) | (forms[i] ? 1 << 24 : 0));
        to = end;
        ends[i] = to - out;
    }
    release(&views);
    return PyLong_FromSsize_t(to - out);
}

#endif
