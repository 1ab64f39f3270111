/* Blocks of records to be stored: checked, stamped, their entries and keys. Part of _kernel.c. */
#ifndef RMQSTORE_BLOCK_H
#define RMQSTORE_BLOCK_H

enum { RULE_BODY_CRC = 1, RULE_CLIENT = 2 };
enum {
    MANY_ROWS = 16,
    BIG_BODY,
    BAD_TOPIC,
    BAD_QUEUE_ID,
    BAD_SYS_FLAG,
    BAD_STORE_HOST,
    CRC_PROPERTY,
};
#define BORN_V6 0x10u
#define STORE_V6 0x20u
#define TRANSACTION 0xCu
#define ROLLBACK 0xCu

/* One record, found at `at`; longs and ints as parse_one fills them. */
typedef struct {
    const uint8_t *at;
    int64_t longs[LONGS];
    int32_t ints[INTS];
} Record;

static inline int32_t read_record(Record *record, const uint8_t *at, int64_t room)
{
    record->at = at;
    return parse_one(at, room, record->longs, record->ints, 1);
}

#define RECORD_SIZE(r) ((r).ints[0])
#define RECORD_CRC_OF_BODY(r) ((uint32_t)(r).ints[2])
#define RECORD_QUEUE_ID(r) ((r).ints[3])
#define RECORD_SYS_FLAG(r) ((uint32_t)(r).ints[5])
#define RECORD_BODY(r) ((r).at + (r).ints[7])
#define RECORD_BODY_SIZE(r) ((r).ints[8])
#define RECORD_TOPIC(r) ((r).at + (r).ints[9])
#define RECORD_TOPIC_SIZE(r) ((r).ints[10])
#define RECORD_PROPERTIES(r) ((r).at + (r).ints[11])
#define RECORD_PROPERTIES_SIZE(r) ((r).ints[12])

static int is_utf8(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        int step = utf8_step(p, end);
        if (step < 0)
            return 0;
        p += step;
    }
    return 1;
}

static int has_crc_property(const Record *r)
{
    return RECORD_PROPERTIES_SIZE(*r) >= TRAILER &&
           memcmp(r->at + RECORD_SIZE(*r) - TRAILER, "__CRC32#\x01", 9) == 0;
}

typedef struct {
    int rules, store_host_v6;
    int64_t max_body;
    uint32_t allowed;
} Rules;

static int32_t judge(const Record *r, const Rules *rules)
{
    uint32_t flag = RECORD_SYS_FLAG(*r);
    const uint8_t *topic = RECORD_TOPIC(*r);
    int client = rules->rules & RULE_CLIENT;
    if (RECORD_BODY_SIZE(*r) > rules->max_body)
        return BIG_BODY;
    if (client && (RECORD_TOPIC_SIZE(*r) == 0 || !is_utf8(topic, topic + RECORD_TOPIC_SIZE(*r))))
        return BAD_TOPIC;
    if (client && RECORD_QUEUE_ID(*r) < 0)
        return BAD_QUEUE_ID;
    if (client && (flag & ~(rules->allowed | BORN_V6 | STORE_V6)))
        return BAD_SYS_FLAG;
    if (rules->store_host_v6 >= 0 && !(flag & STORE_V6) != !rules->store_host_v6)
        return BAD_STORE_HOST;
    if (client && has_crc_property(r))
        return CRC_PROPERTY;
    if ((rules->rules & RULE_BODY_CRC) &&
        (crc32_of(RECORD_BODY(*r), (size_t)RECORD_BODY_SIZE(*r)) & 0x7FFFFFFFu) !=
            RECORD_CRC_OF_BODY(*r))
        return BODY_CRC;
    return OK;
}

/* The value of the last property of a name; its length is -1 where there is none. */
static inline void note_value(const Piece *piece, const char *name, int32_t length, Piece *found)
{
    if (piece->name_length == length && memcmp(piece->name, name, (size_t)length) == 0)
        *found = *piece;
}

static uint32_t hash_of_tags(const Record *r, const uint8_t *limit)
{
    const uint8_t *at = RECORD_PROPERTIES(*r), *end = at + RECORD_PROPERTIES_SIZE(*r);
    Piece piece, tags = {.value_length = -1};
    while (next_property(&at, end, limit, &piece))
        note_value(&piece, "TAGS", 4, &tags);
    return tags.value_length < 0 ? 0 : hash_on(0, tags.value, tags.value + tags.value_length);
}

/* Queues by their names: numbers from 1 on in a table with open addresses, and for each where its
 * topic stands, how long that is, and the queueId. */
typedef struct {
    const uint8_t *data;
    int64_t *routes;
    int32_t *table, count;
    uint64_t seed, mask;
} Routes;

static inline uint64_t mixed(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t hash_of_route(const Routes *routes, const Record *r)
{
    const uint8_t *p = RECORD_TOPIC(*r);
    size_t left = (size_t)RECORD_TOPIC_SIZE(*r);
    uint64_t word = 0;
    uint64_t h = mixed(routes->seed, (uint64_t)(uint32_t)RECORD_QUEUE_ID(*r) << 32 | left);
    for (; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        h = mixed(h, word);
    }
    word = 0;
    copy((uint8_t *)&word, p, left & 7);
    return mixed(h, word);
}

static inline int is_route(const Routes *routes, int32_t number, const Record *r)
{
    const int64_t *route = routes->routes + 3 * (int64_t)number;
    return route[2] == RECORD_QUEUE_ID(*r) && route[1] == RECORD_TOPIC_SIZE(*r) &&
           equal(routes->data + route[0], RECORD_TOPIC(*r), (size_t)RECORD_TOPIC_SIZE(*r));
}

static int32_t number_of_route(Routes *routes, const Record *r)
{
    uint64_t slot = hash_of_route(routes, r) & routes->mask;
    for (; routes->table[slot]; slot = (slot + 1) & routes->mask)
        if (is_route(routes, routes->table[slot] - 1, r))
            return routes->table[slot] - 1;
    int64_t *route = routes->routes + 3 * (int64_t)routes->count;
    route[0] = RECORD_TOPIC(*r) - routes->data;
    route[1] = RECORD_TOPIC_SIZE(*r);
    route[2] = RECORD_QUEUE_ID(*r);
    routes->table[slot] = ++routes->count;
    return routes->count - 1;
}

static PyObject *check_block(PyObject *self, PyObject *args)
{
    PyObject *o[8];
    Rules rules;
    long long max_body, allowed, seed;
    if (!PyArg_ParseTuple(args, "OiLiLLOOOOOOO", &o[0], &rules.rules, &max_body,
                          &rules.store_host_v6, &allowed, &seed, &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6], &o[7]))
        return NULL;
    rules.max_body = max_body;
    rules.allowed = (uint32_t)allowed;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o[0], 0)
    TAKE(starts, int64_t, o[1], 1)
    TAKE(sizes, int32_t, o[2], 1)
    TAKE(route_of, int32_t, o[3], 1)
    TAKE(tags_code, int64_t, o[4], 1)
    TAKE(queued, uint8_t, o[5], 1)
    TAKE(found, int64_t, o[6], 1)
    TAKE(table, int32_t, o[7], 1)
    Py_ssize_t most = starts_n;
    REQUIRE(sizes_n == most && route_of_n == most && tags_code_n == most, SMALL)
    REQUIRE(queued_n == most && found_n == 3 * most && most < INT32_MAX, SMALL)
    REQUIRE(table_n > most && (table_n & (table_n - 1)) == 0, SMALL)
    Routes routes = {.data = data, .routes = found, .table = table, .seed = (uint64_t)seed,
                     .mask = (uint64_t)table_n - 1};
    const uint8_t *limit = data + data_n;
    int32_t status = OK, route = -1;
    int64_t at = 0;
    Py_ssize_t n = 0;
    Record record;
    Py_BEGIN_ALLOW_THREADS
    memset(table, 0, (size_t)table_n * sizeof *table);
    while (at < data_n) {
        if (n == most)
            status = MANY_ROWS;
        else if (data_n - at < MIN_RECORD)
            status = SHORT;
        else if ((rules.rules & RULE_CLIENT) && be32(data + at + 4) != 0xDAA320A7u)
            status = MAGIC;
        else
            status = read_record(&record, data + at, data_n - at);
        if (status == OK)
            status = judge(&record, &rules);
        if (status != OK)
            break;
        if (route < 0 || !is_route(&routes, route, &record))
            route = number_of_route(&routes, &record);
        uint32_t transaction = RECORD_SYS_FLAG(record) & TRANSACTION;
        starts[n] = at;
        sizes[n] = RECORD_SIZE(record);
        route_of[n] = route;
        tags_code[n] = (int32_t)hash_of_tags(&record, limit);
        queued[n] = transaction == 0 || transaction == 8;
        at += RECORD_SIZE(record);
        n++;
    }
    Py_END_ALLOW_THREADS
    release(&views);
    return Py_BuildValue("niiL", n, status == OK ? routes.count : 0, status, (long long)at);
}

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
    Py_BEGIN_ALLOW_THREADS
    for (; i < n; i++) {
        int32_t route = route_of[i];
        if (route < 0 || route >= next_offsets_n)
            break;
        queue_offset[i] = queued[i] ? next_offsets[route]++ : 0;
    }
    Py_END_ALLOW_THREADS
    REQUIRE(i == n, "a row has a queue that there is not")
    release(&views);
    Py_RETURN_NONE;
}

static inline void put64(uint8_t *p, int64_t v)
{
    uint64_t raw = __builtin_bswap64((uint64_t)v);
    memcpy(p, &raw, 8);
}

static inline void put32(uint8_t *p, int32_t v)
{
    uint32_t raw = __builtin_bswap32((uint32_t)v);
    memcpy(p, &raw, 4);
}

static PyObject *stamp_records(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    long long store_timestamp;
    const char *store_host;
    Py_ssize_t host_size;
    if (!PyArg_ParseTuple(args, "OOOOLy#", &o[0], &o[1], &o[2], &o[3], &store_timestamp,
                          &store_host, &host_size))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, uint8_t, o[0], 1)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(queue_offset, const int64_t, o[2], 0)
    TAKE(physical_offset, const int64_t, o[3], 0)
    Py_ssize_t n = starts_n, i = 0;
    REQUIRE(queue_offset_n == n && physical_offset_n == n, "the arrays differ in number")
    REQUIRE(host_size == 8 || host_size == 20, "a host has 8 or 20 bytes")
    uint8_t stamp[28];
    put64(stamp, store_timestamp);
    memcpy(stamp + 8, store_host, (size_t)host_size);
    int other = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; i < n; i++) {
        int64_t start = starts[i];
        if (!inside(start, MIN_RECORD, data_n))
            break;
        uint8_t *p = data + start;
        uint32_t flag = be32(p + 36);
        int64_t at = (flag & BORN_V6) ? 68 : 56;
        other = ((flag & STORE_V6) != 0) != (host_size == 20);
        if (other || !inside(start + at, 8 + host_size, data_n))
            break;
        put64(p + 20, queue_offset[i]);
        put64(p + 28, physical_offset[i]);
        memcpy(p + at, stamp, 8 + (size_t)host_size);
    }
    Py_END_ALLOW_THREADS
    REQUIRE(!other, "a record has room for a host of the other kind")
    REQUIRE(i == n, OUTSIDE)
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
    Py_BEGIN_ALLOW_THREADS
    memset(bounds, 0, (size_t)bounds_n * sizeof *bounds);
    for (; i < n && route_of[i] >= 0 && route_of[i] < count; i++) {
        bounds[route_of[i] + 1] += queued[i] != 0;
        total += queued[i] != 0;
    }
    for (Py_ssize_t r = 1; r <= count; r++)
        bounds[r] += bounds[r - 1];
    Py_END_ALLOW_THREADS
    REQUIRE(i == n, "a row has a queue that there is not")
    REQUIRE(entries_n % ENTRY == 0 && entries_n / ENTRY == total, SMALL)
    Py_BEGIN_ALLOW_THREADS
    /* Each queue's begin moves to its end, which is where the next one began. */
    for (i = 0; i < n; i++)
        if (queued[i]) {
            uint8_t *p = entries + ENTRY * bounds[route_of[i]]++;
            put64(p, physical_offset[i]);
            put32(p + 8, sizes[i]);
            put64(p + 12, tags_code[i]);
        }
    memmove(bounds + 1, bounds, (size_t)count * sizeof *bounds);
    bounds[0] = 0;
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

/* What an index knows a key by, of the hash of "topic#". */
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

/* The keys of one record; 0 where there is no room for all of them. */
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
    Py_BEGIN_ALLOW_THREADS
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
    Py_END_ALLOW_THREADS
    REQUIRE(!damaged, "a record is damaged")
    release(&views);
    return Py_BuildValue("nn", row, keys.count);
}

#endif
