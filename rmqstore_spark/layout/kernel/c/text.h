/* Checks and repairs UTF-8. Part of kernel.c. */
#ifndef RMQSTORE_TEXT_H
#define RMQSTORE_TEXT_H

/* Return the length of the valid sequence at p (1..4); or, negated, that of the invalid sequence
 * that becomes a single U+FFFD (as Unicode recommends, and Python and Java do). */
static int utf8_step(const uint8_t *p, const uint8_t *end)
{
    uint8_t c = p[0], low = 0x80, high = 0xBF;
    int more;
    if (c < 0x80)
        return 1;
    if (c >= 0xC2 && c <= 0xDF)
        more = 1;
    else if (c >= 0xE0 && c <= 0xEF) {
        more = 2;
        if (c == 0xE0)
            low = 0xA0;
        if (c == 0xED)
            high = 0x9F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        more = 3;
        if (c == 0xF0)
            low = 0x90;
        if (c == 0xF4)
            high = 0x8F;
    } else
        return -1;
    for (int i = 1; i <= more; i++) {
        if (p + i >= end || p[i] < low || p[i] > high)
            return -i;
        low = 0x80;
        high = 0xBF;
    }
    return more + 1;
}

static PyObject *is_ascii(PyObject *self, PyObject *args)
{
    PyObject *o;
    if (!PyArg_ParseTuple(args, "O", &o))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o, 0)
    uint8_t bits = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < data_n; i++)
        bits |= data[i];
    Py_END_ALLOW_THREADS
    release(&views);
    return PyBool_FromLong(bits < 0x80);
}

static PyObject *repair_utf8(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(offsets, const int32_t, o[0], 0)
    TAKE(data, const uint8_t, o[1], 0)
    TAKE(new_offsets, int32_t, o[2], 1)
    TAKE(out, uint8_t, o[3], 1)
    REQUIRE(offsets_n >= 1 && new_offsets_n == offsets_n && out_n <= INT32_MAX, SMALL)
    for (Py_ssize_t i = 0; i + 1 < offsets_n; i++)
        REQUIRE(offsets[i] >= 0 && offsets[i] <= offsets[i + 1] && offsets[i + 1] <= data_n, OUTSIDE)
    Py_ssize_t at = 0;
    int full = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i + 1 < offsets_n && !full; i++) {
        new_offsets[i] = (int32_t)at;
        const uint8_t *p = data + offsets[i], *end = data + offsets[i + 1];
        while (p < end) {
            int step = utf8_step(p, end);
            int width = step > 0 ? step : 3;
            if (at + width > out_n) {
                full = 1;
                break;
            }
            memcpy(out + at, step > 0 ? p : (const uint8_t *)"\xEF\xBF\xBD", (size_t)width);
            at += width;
            p += step > 0 ? step : -step;
        }
    }
    new_offsets[offsets_n - 1] = (int32_t)at;
    Py_END_ALLOW_THREADS
    release(&views);
    if (full) {
        PyErr_SetString(PyExc_ValueError, SMALL);
        return NULL;
    }
    return PyLong_FromSsize_t(at);
}

#endif
