/* Splits ConsumeQueue entries. Part of kernel.c. */

#define ENTRY 20 /* physicalOffset 8, size 4, tagsCode 8 */
#define FILLER 2147483647

static PyObject *split_entries(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o[0], 0)
    TAKE(offsets, int64_t, o[1], 1)
    TAKE(sizes, int32_t, o[2], 1)
    TAKE(codes, int64_t, o[3], 1)
    Py_ssize_t n = offsets_n;
    REQUIRE(n <= data_n / ENTRY && sizes_n == n && codes_n == n, SMALL)
    int dead = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint8_t *p = data + ENTRY * i;
        offsets[i] = (int64_t)be64(p);
        sizes[i] = (int32_t)be32(p + 8);
        codes[i] = (int64_t)be64(p + 12);
        dead |= (offsets[i] < 0) | (sizes[i] <= 0) |
                ((sizes[i] == FILLER) & (offsets[i] == 0) & (codes[i] == 0));
    }
    Py_END_ALLOW_THREADS
    release(&views);
    return PyBool_FromLong(!dead);
}
