/* Finds the messages in the body of a producer's batch. Part of kernel.c. */

#define ENTRY_HEAD 20  /* size 4, magic 4, CRC 4, flag 4, length of the body 4 */
#define LEAST_ENTRY 22 /* with the length of the properties, 2 */

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
        const uint8_t *p = data + at;
        broken = 1;
        if (found == most || data_n - at < LEAST_ENTRY)
            break;
        int64_t size = (int32_t)be32(p), body = (int32_t)be32(p + 16);
        if (size < LEAST_ENTRY || size > data_n - at || body < 0 || body > size - LEAST_ENTRY)
            break;
        int64_t properties = (int16_t)(p[ENTRY_HEAD + body] << 8 | p[ENTRY_HEAD + body + 1]);
        if (properties != size - LEAST_ENTRY - body)
            break;
        broken = 0;
        body_at[found] = at + ENTRY_HEAD;
        body_sizes[found] = (int32_t)body;
        properties_at[found] = at + LEAST_ENTRY + body;
        properties_sizes[found] = (int32_t)properties;
        flags[found++] = (int32_t)be32(p + 12);
        at += size;
    }
    END_LOOP
    release(&views);
    return Py_BuildValue("nn", found, broken ? at : (Py_ssize_t)-1);
}
