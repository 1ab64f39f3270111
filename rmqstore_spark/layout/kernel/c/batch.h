/* Finds the messages in the body of a producer's batch. Part of kernel.c. */

#define ENTRY_HEAD 20  /* size 4, magic 4, CRC 4, flag 4, length of the body 4 */
#define LEAST_ENTRY 22 /* with the length of the properties, 2 */

typedef struct {
    Py_ssize_t size, body_at, body, properties_at, properties; /* bytes, and offsets in the data */
    int32_t flag;
} Entry;

/* Read the message that begins at an offset; return whether there is one. */
static int read_entry(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, Entry *entry)
{
    const uint8_t *p = data + at;
    if (end - at < LEAST_ENTRY)
        return 0;
    int64_t size = (int32_t)be32(p), body = (int32_t)be32(p + 16);
    if (size < LEAST_ENTRY || size > end - at || body < 0 || body > size - LEAST_ENTRY)
        return 0;
    int64_t properties = (int16_t)(p[ENTRY_HEAD + body] << 8 | p[ENTRY_HEAD + body + 1]);
    *entry = (Entry){size, at + ENTRY_HEAD, body, at + LEAST_ENTRY + body, properties,
                     (int32_t)be32(p + 12)};
    return properties == size - LEAST_ENTRY - body;
}

static PyObject *split_batch(PyObject *self, PyObject *args)
{
    PyObject *o[6];
    if (!PyArg_ParseTuple(args, "OOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5]))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o[0], 0)
    TAKE(body_at, int64_t, o[1], 1)
    TAKE(body_sizes, int32_t, o[2], 1)
    TAKE(properties_at, int64_t, o[3], 1)
    TAKE(properties_sizes, int32_t, o[4], 1)
    TAKE(flags, int32_t, o[5], 1)
    Py_ssize_t most = body_at_n, found = 0, at = 0;
    REQUIRE(body_sizes_n == most && properties_at_n == most && properties_sizes_n == most &&
                flags_n == most, SMALL)
    int broken = 0;
    BEGIN_LOOP(data_n, LONG_BLOCK)
    while (at < data_n) {
        Entry entry;
        broken = found == most || !read_entry(data, at, data_n, &entry);
        if (broken)
            break;
        body_at[found] = entry.body_at;
        body_sizes[found] = (int32_t)entry.body;
        properties_at[found] = entry.properties_at;
        properties_sizes[found] = (int32_t)entry.properties;
        flags[found++] = entry.flag;
        at += entry.size;
    }
    END_LOOP
    release(&views);
    return Py_BuildValue("nn", found, broken ? at : (Py_ssize_t)-1);
}
