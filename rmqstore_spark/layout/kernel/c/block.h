/* Checks and stamps blocks of records to be stored. Part of kernel.c. */
#ifndef RMQSTORE_BLOCK_H
#define RMQSTORE_BLOCK_H

enum { RULE_BODY_CRC = 1, RULE_CLIENT = 2, RULE_PRODUCER = 4, RULE_DIGEST = 8 };
enum {
    MANY_ROWS = 16,
    BIG_BODY,
    BAD_TOPIC,
    BAD_QUEUE_ID,
    BAD_SYS_FLAG,
    BAD_STORE_HOST,
    CRC_PROPERTY,
    LIGHT_QUEUES,
    BAD_RECONSUME_TIMES,
    BAD_PREPARED_OFFSET,
    BAD_BORN_PORT,
};
#define BORN_V6 0x10u
#define STORE_V6 0x20u
#define TRANSACTION 0xCu
#define ROLLBACK 0xCu
#define COMPRESSED 0x1u
#define MOST_PORT 0xFFFFu

/* A record at `at`; parse_one fills longs and ints. */
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
#define RECORD_BORN_PORT(r) be32((r).at + (RECORD_SYS_FLAG(r) & BORN_V6 ? 64 : 52))
#define RECORD_RECONSUME_TIMES(r) ((r).ints[6])
#define RECORD_PREPARED_OFFSET(r) ((r).longs[4])
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
    if (rules->rules & RULE_PRODUCER) {
        if (RECORD_RECONSUME_TIMES(*r) < 0)
            return BAD_RECONSUME_TIMES;
        if (RECORD_PREPARED_OFFSET(*r) != 0)
            return BAD_PREPARED_OFFSET;
        if (RECORD_BORN_PORT(*r) > MOST_PORT)
            return BAD_BORN_PORT;
    }
    if ((rules->rules & RULE_BODY_CRC) &&
        (crc32_of(RECORD_BODY(*r), (size_t)RECORD_BODY_SIZE(*r)) & 0x7FFFFFFFu) !=
            RECORD_CRC_OF_BODY(*r))
        return BODY_CRC;
    return OK;
}

/* Keep the piece if it has this name. The last one counts; a length of -1 means none. */
static inline void note_value(const Piece *piece, const char *name, int32_t length, Piece *found)
{
    if (piece->name_length == length && memcmp(piece->name, name, (size_t)length) == 0)
        *found = *piece;
}

/* Return the hash of the TAGS, and whether the properties name light queues, and a DELAY. */
static uint32_t hash_of_tags(const Record *r, const uint8_t *limit, int *light, int *delayed)
{
    const uint8_t *at = RECORD_PROPERTIES(*r), *end = at + RECORD_PROPERTIES_SIZE(*r);
    Piece piece, tags = {.value_length = -1}, queues = tags, delay = tags;
    while (next_property(&at, end, limit, &piece)) {
        note_value(&piece, "TAGS", 4, &tags);
        note_value(&piece, "DELAY", 5, &delay);
        note_value(&piece, "INNER_MULTI_DISPATCH", 20, &queues);
    }
    *light = queues.value_length >= 0;
    *delayed = delay.value_length >= 0;
    return tags.value_length < 0 ? 0 : hash_on(0, tags.value, tags.value + tags.value_length);
}

/* A hash table of queues with open addressing. Its values are route numbers plus 1. Each route
 * holds the offset and the length of its topic, and the queueId. */
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

/* Hash what is the same when a record's row is written again. */
static inline uint64_t hash_of_record(const Record *r, const uint8_t *limit)
{
    const uint8_t *properties = RECORD_PROPERTIES(*r);
    uint64_t numbers = be32(r->at + 16) | (uint64_t)(uint32_t)RECORD_RECONSUME_TIMES(*r) << 32;
    uint64_t h = content_hash(RECORD_BODY(*r), (size_t)RECORD_BODY_SIZE(*r));
    h = finalized(h + content_hash(RECORD_TOPIC(*r), (size_t)RECORD_TOPIC_SIZE(*r)));
    h = finalized(
        h + hash_of_properties(properties, properties + RECORD_PROPERTIES_SIZE(*r), limit));
    h = finalized(h + numbers);
    return finalized(h + (RECORD_SYS_FLAG(*r) & ~(uint32_t)(BORN_V6 | STORE_V6)) + GOLDEN);
}

static PyObject *check_block(PyObject *self, PyObject *args)
{
    PyObject *o[9];
    Rules rules;
    long long max_body, allowed, seed;
    if (!PyArg_ParseTuple(args, "OiLiLLOOOOOOOO", &o[0], &rules.rules, &max_body,
                          &rules.store_host_v6, &allowed, &seed, &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6], &o[7], &o[8]))
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
    TAKE(sums, uint64_t, o[8], 1)
    Py_ssize_t most = starts_n;
    REQUIRE(sizes_n == most && route_of_n == most && tags_code_n == most, SMALL)
    REQUIRE(queued_n == most && found_n == 3 * most && most < INT32_MAX, SMALL)
    REQUIRE(sums_n == 2, SMALL)
    REQUIRE(table_n > most && (table_n & (table_n - 1)) == 0, SMALL)
    Routes routes = {.data = data, .routes = found, .table = table, .seed = (uint64_t)seed,
                     .mask = (uint64_t)table_n - 1};
    const uint8_t *limit = data + data_n;
    int32_t status = OK, route = -1;
    int64_t at = 0;
    Py_ssize_t n = 0, compressed = 0, delays = 0;
    Record record;
    BEGIN_LOOP(data_n, LONG_BLOCK)
    memset(table, 0, (size_t)table_n * sizeof *table);
    sums[0] = sums[1] = 0;
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
        int light = 0, delayed = 0;
        if (status == OK)
            tags_code[n] = (int32_t)hash_of_tags(&record, limit, &light, &delayed);
        if (light && (rules.rules & RULE_PRODUCER))
            status = LIGHT_QUEUES;
        if (status != OK)
            break;
        if (route < 0 || !is_route(&routes, route, &record))
            route = number_of_route(&routes, &record);
        if (rules.rules & RULE_DIGEST) { /* the body is in the cache, as its CRC was checked */
            uint64_t h = hash_of_record(&record, limit);
            sums[0] += h;
            sums[1] += finalized(h + GOLDEN);
        }
        uint32_t transaction = RECORD_SYS_FLAG(record) & TRANSACTION;
        starts[n] = at;
        sizes[n] = RECORD_SIZE(record);
        route_of[n] = route;
        queued[n] = transaction == 0 || transaction == 8;
        compressed += RECORD_SYS_FLAG(record) & COMPRESSED;
        delays += delayed;
        at += RECORD_SIZE(record);
        n++;
    }
    END_LOOP
    release(&views);
    return Py_BuildValue("niiLnn", n, status == OK ? routes.count : 0, status, (long long)at,
                         status == OK ? compressed : 0, status == OK ? delays : 0);
}

/* What a store writes into each record: its time, and its host. */
typedef struct {
    uint8_t bytes[28];
    Py_ssize_t host_size;
} Stamp;

static Stamp stamp_of(int64_t store_timestamp, const char *host, Py_ssize_t host_size)
{
    Stamp stamp = {.host_size = host_size};
    put64(stamp.bytes, store_timestamp);
    memcpy(stamp.bytes + 8, host, (size_t)host_size);
    return stamp;
}

enum { STAMPED, OTHER_HOST, NOT_INSIDE };

static int stamp_one(uint8_t *data, Py_ssize_t size, int64_t start, int64_t queue_offset,
                     int64_t physical_offset, const Stamp *stamp)
{
    if (!inside(start, MIN_RECORD, size))
        return NOT_INSIDE;
    uint8_t *p = data + start;
    uint32_t flag = be32(p + 36);
    int64_t at = (flag & BORN_V6) ? 68 : 56;
    if (((flag & STORE_V6) != 0) != (stamp->host_size == 20))
        return OTHER_HOST;
    if (!inside(start + at, 8 + stamp->host_size, size))
        return NOT_INSIDE;
    put64(p + 20, queue_offset);
    put64(p + 28, physical_offset);
    memcpy(p + at, stamp->bytes, 8 + (size_t)stamp->host_size);
    return STAMPED;
}

static PyObject *stamp_record(PyObject *self, PyObject *args)
{
    PyObject *record;
    long long queue_offset, physical_offset, store_timestamp;
    const char *store_host;
    Py_ssize_t host_size;
    if (!PyArg_ParseTuple(args, "OLLLy#", &record, &queue_offset, &physical_offset,
                          &store_timestamp, &store_host, &host_size))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, uint8_t, record, 1)
    REQUIRE(host_size == 8 || host_size == 20, "a host has 8 or 20 bytes")
    const Stamp stamp = stamp_of(store_timestamp, store_host, host_size);
    int found = stamp_one(data, data_n, 0, queue_offset, physical_offset, &stamp);
    REQUIRE(found != OTHER_HOST, "a record has room for a host of the other kind")
    REQUIRE(found == STAMPED, OUTSIDE)
    release(&views);
    Py_RETURN_NONE;
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
    const Stamp stamp = stamp_of(store_timestamp, store_host, host_size);
    int found = STAMPED;
    BEGIN_LOOP(n, SOME_ROWS)
    for (; i < n && found == STAMPED; i++)
        found = stamp_one(data, data_n, starts[i], queue_offset[i], physical_offset[i], &stamp);
    END_LOOP
    REQUIRE(found != OTHER_HOST, "a record has room for a host of the other kind")
    REQUIRE(found == STAMPED, OUTSIDE)
    release(&views);
    Py_RETURN_NONE;
}

#endif
