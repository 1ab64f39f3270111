/* Turns plain requests to send messages into records. Part of kernel.c. */
#ifndef RMQSTORE_SENDS_H
#define RMQSTORE_SENDS_H

#define SEPARATOR 2 /* between properties */
#define PEER (HOST + 1) /* bytes of a client's host, and whether it is IPv6 */
#define MOST_MESSAGES 4500 /* of a plain batch: their msgIds fit the header of an answer */

/* What an answer needs of a request; without a size, the request was odd. */
enum { ASKED_OPAQUE, ASKED_FORM, ASKED_QUEUE, ASKED_SIZE, ASKED_ROWS, ASKED_INTS };

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

/* What a block tells of its records, while requests are added to it. A queue has a place of its own
 * among those of all topics, and `marks` has the number of its route there, plus 1. */
typedef struct {
    int64_t *starts, *tags;
    int32_t *sizes, *route_of, *places, *marks, route_count;
    Py_ssize_t rows, most;
    Keys keys;
    Rules rules;
    int64_t compressed;
} NewBlock;

static void forget_routes(NewBlock *block, int32_t kept)
{
    while (block->route_count > kept)
        block->marks[block->places[--block->route_count]] = 0;
}

/* Add the records of a request, which fill `size` bytes from `at` on, and are for the queue at a
 * place. Return 0, and add nothing, if one of them is odd, or there is no room. */
static int add_rows(NewBlock *block, const uint8_t *data, int64_t at, int64_t size, int32_t place)
{
    const uint8_t *limit = data + at + size;
    NewBlock before = *block;
    if (!block->marks[place]) {
        block->places[block->route_count] = place;
        block->marks[place] = ++block->route_count;
    }
    for (int64_t end = at + size; at < end; block->rows++) {
        Record record;
        int light, delayed;
        Py_ssize_t row = block->rows;
        if (row == block->most || read_record(&record, data + at, end - at) != OK ||
            judge(&record, &block->rules) != OK)
            break;
        block->starts[row] = at;
        block->sizes[row] = RECORD_SIZE(record);
        block->route_of[row] = block->marks[place] - 1;
        block->tags[row] = (int32_t)hash_of_tags(&record, limit, &light, &delayed);
        block->compressed += RECORD_SYS_FLAG(record) & COMPRESSED;
        if (light || delayed || !add_keys(&block->keys, &record, row, limit))
            break;
        at += RECORD_SIZE(record);
        if (at == end) {
            block->rows++;
            return 1;
        }
    }
    forget_routes(block, before.route_count);
    *block = before;
    return 0;
}

/* Write the records of a request behind those in `out`; return their bytes, 0 if it is odd. */
static int64_t put_request(const Request *r, NewRecord *record, uint8_t *text, Py_ssize_t size,
                           uint8_t *out, int64_t room, Py_ssize_t left)
{
    int32_t rows, most = (int32_t)(left < MOST_MESSAGES ? left : MOST_MESSAGES);
    int64_t written = 0;
    record->properties = text;
    record->properties_size = (int32_t)size;
    if (size < 0 || left < 1)
        return 0;
    if (r->code == SEND_BATCH_MESSAGE)
        written = put_batch(r, record, text, size, out, room, most, &rows);
    else
        written = put_record(record, out, room);
    return written > 0 && written <= INT32_MAX ? written : 0;
}

/* What all records get from the store. */
typedef struct {
    const uint8_t *host, *cluster;
    Py_ssize_t host_size, cluster_size;
} Store;

/* Write the records of a request of a client; text has room for its properties. See put_request. */
static int64_t put_send(const Request *r, const uint8_t *peer, const Store *store, uint8_t *text,
                        uint8_t *out, int64_t room, Py_ssize_t left)
{
    Py_ssize_t size = unescape(&r->properties, text);
    if (size >= 0 && r->code == SEND_BATCH_MESSAGE)
        size = add_cluster(text, without_separators(text, size), store->cluster,
                           store->cluster_size);
    else if (size >= 0)
        size = store_properties(text, size, store->cluster, store->cluster_size);
    NewRecord record = {
        .body = r->body, .body_size = (int32_t)r->body_size, .topic = r->topic.text,
        .topic_size = (int32_t)r->topic.size, .queue_id = (int32_t)r->queue_id,
        .flag = (int32_t)r->flag, .sys_flag = (int32_t)r->sys_flag, .times = (int32_t)r->times,
        .born = r->born, .born_host = peer, .born_wide = peer[HOST],
        .stored_host = store->host, .stored_wide = store->host_size == 20, .magic = 0xDAA320A7u};
    return put_request(r, &record, text, size, out, room, left);
}

static PyObject *write_sends(PyObject *self, PyObject *args)
{
    PyObject *frames, *topics, *o[17];
    Py_ssize_t most_body, allowed;
    if (!PyArg_ParseTuple(args, "O!O!nnOOOOOOOOOOOOOOOOO", &PyList_Type, &frames, &PyDict_Type,
                          &topics, &most_body, &allowed, &o[0], &o[1], &o[2], &o[3], &o[4], &o[5],
                          &o[6], &o[7], &o[8], &o[9], &o[10], &o[11], &o[12], &o[13], &o[14],
                          &o[15], &o[16]))
        return NULL;
    Views views = {.used = 0};
    TAKE(queue_nums, const int32_t, o[0], 0)
    TAKE(marks, int32_t, o[1], 1)
    TAKE(hosts, const uint8_t, o[2], 0)
    TAKE(store_host, const uint8_t, o[3], 0)
    TAKE(cluster, const uint8_t, o[4], 0)
    TAKE(counts, int32_t, o[5], 1)
    TAKE(asked, int32_t, o[6], 1)
    TAKE(requests, int32_t, o[7], 1)
    TAKE(starts, int64_t, o[8], 1)
    TAKE(tags, int64_t, o[9], 1)
    TAKE(sizes, int32_t, o[10], 1)
    TAKE(route_of, int32_t, o[11], 1)
    TAKE(places, int32_t, o[12], 1)
    TAKE(key_hash, int32_t, o[13], 1)
    TAKE(key_rows, int32_t, o[14], 1)
    TAKE(text, uint8_t, o[15], 1)
    TAKE(out, uint8_t, o[16], 1)
    Py_ssize_t n = PyList_GET_SIZE(frames), taken = 0;
    int64_t at = 0;
    const char *wrong = NULL;
    REQUIRE(hosts_n == PEER * n && requests_n == ASKED_INTS * n && asked_n == counts_n &&
                counts_n == queue_nums_n && tags_n == starts_n && sizes_n == starts_n &&
                route_of_n == starts_n && places_n == starts_n && key_rows_n == key_hash_n,
            "the arrays differ in number")
    REQUIRE(store_host_n == 8 || store_host_n == 20, "a host has 8 or 20 bytes")
    const Store store = {store_host, cluster, store_host_n, cluster_n};
    NewBlock block = {
        .starts = starts, .tags = tags, .sizes = sizes, .route_of = route_of, .places = places,
        .marks = marks, .most = starts_n,
        .keys = {.hash = key_hash, .row = key_rows, .room = key_hash_n},
        .rules = {.rules = RULE_CLIENT | RULE_PRODUCER, .store_host_v6 = store_host_n == 20,
                  .max_body = most_body, .allowed = (uint32_t)allowed}};
    for (Py_ssize_t i = 0; i < n && !wrong; i++) {
        PyObject *frame = PyList_GET_ITEM(frames, i);
        int32_t *request = requests + ASKED_INTS * i;
        Request r;
        request[ASKED_SIZE] = request[ASKED_ROWS] = 0;
        if (!PyBytes_Check(frame)) {
            wrong = "a frame is not bytes";
            break;
        }
        if (!read_request((const uint8_t *)PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame), &r))
            continue;
        PyObject *topic = PyBytes_FromStringAndSize((const char *)r.topic.text, r.topic.size);
        PyObject *number = topic ? PyDict_GetItemWithError(topics, topic) : NULL;
        Py_XDECREF(topic);
        Py_ssize_t which = number ? PyLong_AsSsize_t(number) : -1;
        if (PyErr_Occurred()) {
            wrong = "a topic has no number";
            break;
        }
        if (which < 0 || which >= counts_n || r.queue_id < 0 || r.queue_id >= queue_nums[which] ||
            r.body_size > most_body)
            continue;
        int64_t place = r.queue_id;
        for (Py_ssize_t k = 0; k < which; k++)
            place += queue_nums[k];
        int is_batch = r.code == SEND_BATCH_MESSAGE;
        Py_ssize_t most_text = r.properties.size + 1 + cluster_n;
        if ((is_batch ? 2 * most_text + LONGEST + 1 : most_text) > text_n || place >= marks_n) {
            wrong = SMALL;
            break;
        }
        Py_ssize_t rows = block.rows;
        int64_t written = put_send(&r, hosts + PEER * i, &store, text, out + at, out_n - at,
                                   block.most - rows);
        if (written == 0 || !add_rows(&block, out, at, written, (int32_t)place))
            continue;
        taken++;
        request[ASKED_OPAQUE] = (int32_t)r.opaque;
        request[ASKED_FORM] = r.is_binary;
        request[ASKED_QUEUE] = (int32_t)r.queue_id;
        request[ASKED_SIZE] = (int32_t)written;
        request[ASKED_ROWS] = (int32_t)(block.rows - rows);
        counts[which] += request[ASKED_ROWS];
        asked[which]++;
        at += written;
    }
    int32_t route_count = block.route_count;
    forget_routes(&block, 0);
    release(&views);
    if (wrong) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    return Py_BuildValue("LnninL", (long long)at, taken, block.rows, (int)route_count,
                         block.keys.count, (long long)block.compressed);
}

#define MOST_KEYS 64 /* of a record that is written alone */

/* Write the record of a request to bytes; return its size, 0 if it is odd. */
static int64_t put_alone(const Request *r, const uint8_t *peer, const Store *store, uint8_t *out,
                         int64_t room, NewBlock *block)
{
    uint8_t *text = PyMem_Malloc((size_t)(r->properties.size + 1 + store->cluster_size));
    if (!text)
        return 0; /* odd: others need more memory, and tell */
    int64_t size = put_send(r, peer, store, text, out, room, 1);
    PyMem_Free(text);
    return size > 0 && add_rows(block, out, 0, size, 0) && !block->compressed ? size : 0;
}

static PyObject *hashes_of(const Keys *keys)
{
    PyObject *found = PyTuple_New(keys->count);
    for (Py_ssize_t i = 0; found && i < keys->count; i++) {
        PyObject *hash = PyLong_FromLong(keys->hash[i]);
        if (hash)
            PyTuple_SET_ITEM(found, i, hash);
        else
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *check_single(PyObject *self, PyObject *args)
{
    PyObject *object;
    Rules rules = {.rules = RULE_CLIENT | RULE_PRODUCER | RULE_BODY_CRC};
    long long max_body, allowed;
    if (!PyArg_ParseTuple(args, "OLiL", &object, &max_body, &rules.store_host_v6, &allowed))
        return NULL;
    rules.max_body = max_body;
    rules.allowed = (uint32_t)allowed;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, object, 0)
    int light, delayed, is_sound = 0;
    int32_t tags = 0, hashes[MOST_KEYS], rows[MOST_KEYS];
    Keys keys = {.hash = hashes, .row = rows, .room = MOST_KEYS};
    Record record;
    PyObject *found = Py_None;
    if (data_n >= MIN_RECORD && be32(data + 4) == 0xDAA320A7u &&
        read_record(&record, data, data_n) == OK && RECORD_SIZE(record) == data_n &&
        !(RECORD_SYS_FLAG(record) & (TRANSACTION | COMPRESSED)) && judge(&record, &rules) == OK &&
        is_ascii_text(RECORD_TOPIC(record), RECORD_TOPIC_SIZE(record))) {
        tags = (int32_t)hash_of_tags(&record, data + data_n, &light, &delayed);
        is_sound = !light && !delayed && add_keys(&keys, &record, 0, data + data_n);
    }
    if (is_sound)
        found = Py_BuildValue("s#iiN", (const char *)RECORD_TOPIC(record),
                              (Py_ssize_t)RECORD_TOPIC_SIZE(record), RECORD_QUEUE_ID(record), tags,
                              hashes_of(&keys));
    else
        Py_INCREF(found);
    release(&views);
    return found;
}

static PyObject *write_send(PyObject *self, PyObject *args)
{
    const char *frame, *peer, *host, *cluster;
    Py_ssize_t frame_n, peer_n, host_n, cluster_n, most_body, allowed;
    int queue_nums;
    if (!PyArg_ParseTuple(args, "y#nniy#y#y#", &frame, &frame_n, &most_body, &allowed, &queue_nums,
                          &peer, &peer_n, &host, &host_n, &cluster, &cluster_n))
        return NULL;
    if (peer_n != PEER || (host_n != 8 && host_n != 20)) {
        PyErr_SetString(PyExc_ValueError, "a host has another size");
        return NULL;
    }
    Request r;
    if (!read_request((const uint8_t *)frame, frame_n, &r) || r.code == SEND_BATCH_MESSAGE ||
        r.queue_id < 0 || r.queue_id >= queue_nums || r.body_size > most_body)
        Py_RETURN_NONE;
    const Store store = {(const uint8_t *)host, (const uint8_t *)cluster, host_n, cluster_n};
    int64_t start, tags;
    int32_t size, route, place, mark = 0, hashes[MOST_KEYS], rows[MOST_KEYS];
    NewBlock block = {
        .starts = &start, .tags = &tags, .sizes = &size, .route_of = &route, .places = &place,
        .marks = &mark, .most = 1,
        .keys = {.hash = hashes, .row = rows, .room = MOST_KEYS},
        .rules = {.rules = RULE_CLIENT | RULE_PRODUCER, .store_host_v6 = host_n == 20,
                  .max_body = most_body, .allowed = (uint32_t)allowed}};
    Py_ssize_t room = frame_n + MIN_RECORD + 128 + cluster_n;
    PyObject *record = PyByteArray_FromStringAndSize(NULL, room);
    if (!record)
        return NULL;
    int64_t written = put_alone(&r, (const uint8_t *)peer, &store,
                                (uint8_t *)PyByteArray_AS_STRING(record), room, &block);
    if (written == 0) {
        Py_DECREF(record);
        Py_RETURN_NONE;
    }
    PyObject *keys = hashes_of(&block.keys);
    if (!keys || PyByteArray_Resize(record, written) < 0) {
        Py_XDECREF(keys);
        Py_DECREF(record);
        return NULL;
    }
    return Py_BuildValue("NiLN", record, (int)r.queue_id, (long long)tags, keys);
}

#endif
