/* Copies, checksums and comparisons of spans. Part of kernel.c. */
#ifndef RMQSTORE_SPANS_H
#define RMQSTORE_SPANS_H

static PyObject *gather(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &o[0], &o[1], &o[2], &o[3], &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(offsets, int32_t, o[3], 1)
    TAKE(data, uint8_t, o[4], 1)
    Py_ssize_t n = starts_n, i = 0;
    int64_t at = 0, room = data_n <= INT32_MAX ? data_n : INT32_MAX;
    REQUIRE(lengths_n == n && offsets_n == n + 1, SMALL)
    Py_BEGIN_ALLOW_THREADS
    for (; i < n; i++) {
        offsets[i] = (int32_t)at;
        if (lengths[i] <= 0)
            continue;
        if (!inside(starts[i], lengths[i], buffer_n) || lengths[i] > room - at)
            break;
        copy(data + at, buffer + starts[i], (size_t)lengths[i]);
        at += lengths[i];
    }
    offsets[n] = (int32_t)at;
    Py_END_ALLOW_THREADS
    REQUIRE(i == n || !inside(starts[i], lengths[i], buffer_n), SMALL)
    REQUIRE(i == n, OUTSIDE)
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *crc32_spans(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(out, uint32_t, o[3], 1)
    REQUIRE(lengths_n == starts_n && out_n == starts_n, SMALL)
    REQUIRE(all_inside(starts, lengths, starts_n, buffer_n), OUTSIDE)
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < starts_n; i++)
        out[i] = lengths[i] > 0 ? crc32_of(buffer + starts[i], (size_t)lengths[i]) : 0;
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *spans_equal(PyObject *self, PyObject *args)
{
    PyObject *o[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(other, const uint8_t, o[3], 0)
    TAKE(other_starts, const int64_t, o[4], 0)
    TAKE(other_lengths, const int32_t, o[5], 0)
    TAKE(out, uint8_t, o[6], 1)
    Py_ssize_t n = starts_n;
    REQUIRE(lengths_n == n && other_starts_n == n && other_lengths_n == n && out_n == n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    REQUIRE(all_inside(other_starts, other_lengths, n, other_n), OUTSIDE)
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = lengths[i] == other_lengths[i] &&
                 (lengths[i] <= 0 ||
                  equal(buffer + starts[i], other + other_starts[i], (size_t)lengths[i]));
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

#endif
