/* Turns plain requests to send messages into records. Part of kernel.c. */
#ifndef RMQSTORE_SENDS_H
#define RMQSTORE_SENDS_H

#define SEPARATOR 2 /* between properties */
#define MOST_MESSAGES 4500 /* of a plain batch: their msgIds fit the header of an answer */

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

#endif
