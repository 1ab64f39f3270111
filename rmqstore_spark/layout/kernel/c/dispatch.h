/* Queue offsets, queue entries and index keys of a block's records. Part of kernel.c. */
#ifndef RMQSTORE_DISPATCH_H
#define RMQSTORE_DISPATCH_H

static PyObject *number_rows(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(route_of, const int32_t, o[0], 0)
    TAKE(queued, const uint8_t, o[1], 0)
    TAKE(next_offsets, int64_t, o[2], 1)
    TAKE(queue_offset, int64_t, o[3], 1)
    Py_ssize_t n = route_of_n, i = 0;
    REQUIRE(queued_n == n && queue_offset_n == n, SMALL)
    BEGIN_LOOP(n, SOME_ROWS)
    for (; i < n; i++) {
        int32_t route = route_of[i];
        if (route < 0 || route >= next_offsets_n)
            break;
        queue_offset[i] = queued[i] ? next_offsets[route]++ : 0;
    }
    END_LOOP
    REQUIRE(i == n, "a row has a queue that there is not")
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *queue_entries(PyObject *self, PyObject *args)
{
    PyObject *o[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6]))
        return NULL;
    Views views = {.used = 0};
    TAKE(route_of, const int32_t, o[0], 0)
    TAKE(queued, const uint8_t, o[1], 0)
    TAKE(physical_offset, const int64_t, o[2], 0)
    TAKE(sizes, const int32_t, o[3], 0)
    TAKE(tags_code, const int64_t, o[4], 0)
    TAKE(entries, uint8_t, o[5], 1)
    TAKE(bounds, int64_t, o[6], 1)
    Py_ssize_t n = route_of_n, count = bounds_n - 1, i = 0;
    REQUIRE(queued_n == n && physical_offset_n == n && sizes_n == n && tags_code_n == n, SMALL)
    REQUIRE(bounds_n >= 1, SMALL)
    int64_t total = 0;
    BEGIN_LOOP(n, SOME_ROWS)
    memset(bounds, 0, (size_t)bounds_n * sizeof *bounds);
    for (; i < n && route_of[i] >= 0 && route_of[i] < count; i++) {
        bounds[route_of[i] + 1] += queued[i] != 0;
        total += queued[i] != 0;
    }
    for (Py_ssize_t r = 1; r <= count; r++)
        bounds[r] += bounds[r - 1];
    END_LOOP
    REQUIRE(i == n, "a row has a queue that there is not")
    REQUIRE(entries_n % ENTRY == 0 && entries_n / ENTRY == total, SMALL)
    BEGIN_LOOP(n, SOME_ROWS)
    /* Each queue's begin advances to its end, which is the next queue's begin. */
    for (i = 0; i < n; i++)
        if (queued[i]) {
            uint8_t *p = entries + ENTRY * bounds[route_of[i]]++;
            put64(p, physical_offset[i]);
            put32(p + 8, sizes[i]);
            put64(p + 12, tags_code[i]);
        }
    memmove(bounds + 1, bounds, (size_t)count * sizeof *bounds);
    bounds[0] = 0;
    END_LOOP
    release(&views);
    Py_RETURN_NONE;
}

/* Return the hash of a key as an index stores it, given the hash of "topic#". */
static inline int32_t key_hash_of(uint32_t topic, const uint8_t *key, const uint8_t *end)
{
    int32_t h = (int32_t)hash_on(topic, key, end);
    if (h == INT32_MIN)
        return 0;
    return h < 0 ? -h : h;
}

typedef struct {
    int32_t *hash, *row;
    Py_ssize_t count, room;
} Keys;

static inline int add_key(Keys *keys, uint32_t topic, const uint8_t *key, const uint8_t *end,
                          Py_ssize_t row)
{
    if (keys->count == keys->room)
        return 0;
    keys->hash[keys->count] = key_hash_of(topic, key, end);
    keys->row[keys->count++] = (int32_t)row;
    return 1;
}

/* Add the keys of one record; return 0 if there is no room for all of them. */
static int add_keys(Keys *keys, const Record *r, Py_ssize_t row, const uint8_t *limit)
{
    const uint8_t *at = RECORD_PROPERTIES(*r), *end = at + RECORD_PROPERTIES_SIZE(*r);
    Piece piece, unique = {.value_length = -1}, spaced = {.value_length = -1};
    while (next_property(&at, end, limit, &piece)) {
        note_value(&piece, "UNIQ_KEY", 8, &unique);
        note_value(&piece, "KEYS", 4, &spaced);
    }
    uint32_t topic = hash_on(0, RECORD_TOPIC(*r), RECORD_TOPIC(*r) + RECORD_TOPIC_SIZE(*r));
    topic = topic * 31 + '#';
    if (unique.value_length >= 0 &&
        !add_key(keys, topic, unique.value, unique.value + unique.value_length, row))
        return 0;
    if (spaced.value_length < 0)
        return 1;
    at = spaced.value;
    end = at + spaced.value_length;
    while (at < end) {
        const uint8_t *space = memchr(at, ' ', (size_t)(end - at));
        const uint8_t *stop = space ? space : end;
        if (stop > at && !add_key(keys, topic, at, stop, row))
            return 0;
        at = stop + 1;
    }
    return 1;
}

static PyObject *index_hashes(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    Py_ssize_t first;
    if (!PyArg_ParseTuple(args, "OOOnOO", &o[0], &o[1], &o[2], &first, &o[3], &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(sizes, const int32_t, o[2], 0)
    TAKE(key_hash, int32_t, o[3], 1)
    TAKE(rows, int32_t, o[4], 1)
    Py_ssize_t n = starts_n, row = first;
    REQUIRE(sizes_n == n && rows_n == key_hash_n && n <= INT32_MAX, SMALL)
    REQUIRE(first >= 0 && first <= n, "a row is asked for that there is not")
    Keys keys = {.hash = key_hash, .row = rows, .room = key_hash_n};
    int damaged = 0;
    BEGIN_LOOP(n, SOME_ROWS)
    Record record;
    for (; row < n; row++) {
        damaged = !inside(starts[row], sizes[row], data_n) ||
                  read_record(&record, data + starts[row], sizes[row]) != OK;
        if (damaged)
            break;
        if ((RECORD_SYS_FLAG(record) & TRANSACTION) == ROLLBACK)
            continue;
        Py_ssize_t before = keys.count;
        if (!add_keys(&keys, &record, row, data + data_n)) {
            keys.count = before;
            break;
        }
    }
    END_LOOP
    REQUIRE(!damaged, "a record is damaged")
    release(&views);
    return Py_BuildValue("nn", row, keys.count);
}

#endif
