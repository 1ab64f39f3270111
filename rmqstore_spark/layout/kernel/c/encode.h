/* Writes records, and texts that are joined, from columns. Part of kernel.c. */
#ifndef RMQSTORE_ENCODE_H
#define RMQSTORE_ENCODE_H

/* A column of texts in Arrow's layout: text i lies between offsets[i] and offsets[i + 1]. */
typedef struct {
    const int32_t *offsets;
    const uint8_t *data;
    Py_ssize_t size;
} Texts;

static inline int text_at(const Texts *texts, Py_ssize_t i, const uint8_t **text, int32_t *length)
{
    int32_t from = texts->offsets[i], to = texts->offsets[i + 1];
    if (from < 0 || from > to || to > texts->size)
        return 0;
    *text = texts->data + from;
    *length = to - from;
    return 1;
}

#define HOST 20 /* bytes of each host in a table, IPv4 or IPv6 */

/* The input of the records: (ENCODED_INTS, n) and (ENCODED_LONGS, n), see
 * encode.write_records. */
enum { ENCODED_INTS = 6, ENCODED_LONGS = 5 };
typedef struct {
    const int32_t *ints;
    const int64_t *longs;
    const uint8_t *hosts, *wide;
    Py_ssize_t n, hosts_n;
    Texts body, topic, properties;
    uint32_t magic;
} Columns;

/* All that a record holds but for its offsets and times, which the store gives it. */
typedef struct {
    const uint8_t *body, *topic, *properties, *born_host, *stored_host;
    int32_t body_size, topic_size, properties_size, queue_id, flag, sys_flag, times;
    int64_t queue_offset, physical_offset, born, stored, prepared;
    int born_wide, stored_wide;
    uint32_t magic;
} NewRecord;

/* Write a record to out; return its size, 0 if there is no room, -1 if no record can hold that. */
static int64_t put_record(const NewRecord *r, uint8_t *out, int64_t room)
{
    int wide_topic = r->magic == 0xDAA320ABu;
    if (r->topic_size > (wide_topic ? LONGEST : 127) || r->properties_size > LONGEST)
        return -1;
    size_t born_size = r->born_wide ? 20 : 8, stored_size = r->stored_wide ? 20 : 8;
    int64_t total = 75 + (int64_t)(born_size + stored_size) + wide_topic + r->body_size +
                    r->topic_size + r->properties_size;
    if (total > INT32_MAX)
        return -1;
    if (total > room)
        return 0;
    uint32_t flag = (uint32_t)r->sys_flag & ~(BORN_V6 | STORE_V6);
    flag |= (r->born_wide ? BORN_V6 : 0) | (r->stored_wide ? STORE_V6 : 0);
    put32(out, (int32_t)total);
    put32(out + 4, (int32_t)r->magic);
    put32(out + 8, (int32_t)(crc32_of(r->body, (size_t)r->body_size) & 0x7FFFFFFFu));
    put32(out + 12, r->queue_id);
    put32(out + 16, r->flag);
    put64(out + 20, r->queue_offset);
    put64(out + 28, r->physical_offset);
    put32(out + 36, (int32_t)flag);
    put64(out + 40, r->born);
    out += 48;
    memcpy(out, r->born_host, born_size);
    out += born_size;
    put64(out, r->stored);
    memcpy(out + 8, r->stored_host, stored_size);
    out += 8 + stored_size;
    put32(out, r->times);
    put64(out + 4, r->prepared);
    put32(out + 12, r->body_size);
    memcpy(out + 16, r->body, (size_t)r->body_size);
    out += 16 + r->body_size;
    if (wide_topic)
        *out++ = (uint8_t)(r->topic_size >> 8);
    *out++ = (uint8_t)r->topic_size;
    copy(out, r->topic, (size_t)r->topic_size);
    out += r->topic_size;
    *out++ = (uint8_t)(r->properties_size >> 8);
    *out++ = (uint8_t)r->properties_size;
    memcpy(out, r->properties, (size_t)r->properties_size);
    return total;
}

/* Write record i to out; return as put_record, also -1 if a column is invalid. */
static int64_t write_record(const Columns *c, Py_ssize_t i, uint8_t *out, int64_t room)
{
    const int32_t *ints = c->ints + i;
    const int64_t *longs = c->longs + i;
    NewRecord record = {
        .queue_id = ints[0], .flag = ints[1 * c->n], .sys_flag = ints[2 * c->n],
        .times = ints[3 * c->n], .queue_offset = longs[0], .physical_offset = longs[1 * c->n],
        .born = longs[2 * c->n], .stored = longs[3 * c->n], .prepared = longs[4 * c->n],
        .magic = c->magic};
    int32_t born = ints[4 * c->n], stored = ints[5 * c->n];
    if (!text_at(&c->body, i, &record.body, &record.body_size) ||
        !text_at(&c->topic, i, &record.topic, &record.topic_size) ||
        !text_at(&c->properties, i, &record.properties, &record.properties_size))
        return -1;
    if (born < 0 || born >= c->hosts_n || stored < 0 || stored >= c->hosts_n)
        return -1;
    record.born_host = c->hosts + HOST * (int64_t)born;
    record.stored_host = c->hosts + HOST * (int64_t)stored;
    record.born_wide = c->wide[born];
    record.stored_wide = c->wide[stored];
    return put_record(&record, out, room);
}

static PyObject *write_records(PyObject *self, PyObject *args)
{
    PyObject *o[13];
    long long magic;
    if (!PyArg_ParseTuple(args, "LOOOOOOOOOOOOO", &magic, &o[0], &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6], &o[7], &o[8], &o[9], &o[10], &o[11], &o[12]))
        return NULL;
    Views views = {.used = 0};
    TAKE(ints, const int32_t, o[0], 0)
    TAKE(longs, const int64_t, o[1], 0)
    TAKE(hosts, const uint8_t, o[2], 0)
    TAKE(wide, const uint8_t, o[3], 0)
    TAKE(body_offsets, const int32_t, o[4], 0)
    TAKE(body, const uint8_t, o[5], 0)
    TAKE(topic_offsets, const int32_t, o[6], 0)
    TAKE(topic, const uint8_t, o[7], 0)
    TAKE(properties_offsets, const int32_t, o[8], 0)
    TAKE(properties, const uint8_t, o[9], 0)
    TAKE(starts, int64_t, o[10], 1)
    TAKE(sizes, int32_t, o[11], 1)
    TAKE(out, uint8_t, o[12], 1)
    Py_ssize_t n = starts_n, i = 0;
    REQUIRE(ints_n == ENCODED_INTS * n && longs_n == ENCODED_LONGS * n && sizes_n == n, SMALL)
    REQUIRE(body_offsets_n == n + 1 && topic_offsets_n == n + 1 && properties_offsets_n == n + 1,
            "the arrays differ in number")
    REQUIRE(hosts_n == HOST * wide_n, "the arrays differ in number")
    Columns columns = {
        .ints = ints, .longs = longs, .hosts = hosts, .wide = wide, .n = n, .hosts_n = wide_n,
        .body = {body_offsets, body, body_n}, .topic = {topic_offsets, topic, topic_n},
        .properties = {properties_offsets, properties, properties_n}, .magic = (uint32_t)magic};
    int64_t at = 0, size = 1;
    BEGIN_LOOP(out_n, LONG_BLOCK)
    for (; i < n; i++) {
        size = write_record(&columns, i, out + at, out_n - at);
        if (size <= 0)
            break;
        starts[i] = at;
        sizes[i] = (int32_t)size;
        at += size;
    }
    END_LOOP
    REQUIRE(size != 0, SMALL)
    REQUIRE(i == n, "a column holds what no record can")
    release(&views);
    return PyLong_FromLongLong(at);
}

#define MOST_COLUMNS 8

static PyObject *join_texts(PyObject *self, PyObject *args)
{
    PyObject *o[6];
    if (!PyArg_ParseTuple(args, "OOOO!OO", &o[0], &o[1], &o[2], &PyTuple_Type, &o[3], &o[4], &o[5]))
        return NULL;
    Views views = {.used = 0};
    TAKE(leads, const uint8_t, o[0], 0)
    TAKE(lead_ends, const int32_t, o[1], 0)
    TAKE(offsets, const int32_t, o[2], 0)
    TAKE(out_offsets, int32_t, o[4], 1)
    TAKE(out, uint8_t, o[5], 1)
    Py_ssize_t k = lead_ends_n, n = out_offsets_n - 1;
    REQUIRE(k <= MOST_COLUMNS && PyTuple_GET_SIZE(o[3]) == k, "the arrays differ in number")
    REQUIRE(n >= 0 && offsets_n == k * (n + 1) && out_n <= INT32_MAX, SMALL)
    Texts columns[MOST_COLUMNS];
    for (Py_ssize_t c = 0; c < k; c++) {
        TAKE(data, const uint8_t, PyTuple_GET_ITEM(o[3], c), 0)
        columns[c] = (Texts){offsets + c * (n + 1), data, data_n};
        REQUIRE((c ? lead_ends[c - 1] : 0) <= lead_ends[c] && lead_ends[c] >= 0 &&
                    lead_ends[c] <= leads_n,
                OUTSIDE)
    }
    Py_ssize_t at = 0, i = 0;
    int sound = 1, full = 0;
    out_offsets[0] = 0;
    BEGIN_LOOP(out_n, LONG_BLOCK)
    for (; i < n && sound && !full; i++) {
        for (Py_ssize_t c = 0; c < k; c++) {
            const uint8_t *text;
            int32_t length, from = c ? lead_ends[c - 1] : 0, lead = lead_ends[c] - from;
            if (!text_at(&columns[c], i, &text, &length)) {
                sound = 0;
                break;
            }
            if (length == 0)
                continue;
            if ((int64_t)lead + length > out_n - at) {
                full = 1;
                break;
            }
            copy(out + at, leads + from, (size_t)lead);
            copy(out + at + lead, text, (size_t)length);
            at += lead + length;
        }
        out_offsets[i + 1] = (int32_t)at;
    }
    END_LOOP
    REQUIRE(sound, OUTSIDE)
    REQUIRE(!full, SMALL)
    release(&views);
    return PyLong_FromSsize_t(at);
}

#endif
