/* Checks and writes entries of a DLedger group. Part of kernel.c.
 *
 * An entry is a tuple: index, term, position, size with its header, and its record (bytes). What a
 * member pushes has 8 MiB at most, so nothing here is long enough to release the interpreter lock.
 */
#ifndef RMQSTORE_MEMBERS_H
#define RMQSTORE_MEMBERS_H

#define ENTRY_HEADER 48
#define ENTRY_UNIT 32
#define NO_ENTRY "an entry is not (index, term, position, size, record) with a size that fits"

static int is_sound(const uint8_t *record, Py_ssize_t size, int64_t position)
{
    int64_t longs[LONGS];
    int32_t ints[INTS];
    if (size > INT32_MAX || parse_one(record, size, longs, ints, 1) != OK)
        return 0;
    return ints[0] == size && longs[1] == position &&
           (crc32_of(record + ints[7], (size_t)ints[8]) & 0x7FFFFFFFu) == (uint32_t)ints[2] &&
           !trailer_differs(record, ints[0], ints[12]);
}

static PyObject *sound_records(PyObject *self, PyObject *args)
{
    PyObject *o[2], *records = NULL, *positions = NULL;
    Py_ssize_t found = 0;
    if (!PyArg_ParseTuple(args, "OO", &o[0], &o[1]))
        return NULL;
    if ((records = PySequence_Tuple(o[0])) == NULL || (positions = PySequence_Tuple(o[1])) == NULL)
        goto done;
    Py_ssize_t n = PyTuple_GET_SIZE(records);
    if (PyTuple_GET_SIZE(positions) != n) {
        PyErr_SetString(PyExc_ValueError, "records and positions differ in number");
        goto done;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(records, i))) {
            PyErr_SetString(PyExc_TypeError, "a record is not bytes");
            goto done;
        }
    for (; found < n; found++) {
        PyObject *record = PyTuple_GET_ITEM(records, found);
        int beyond; /* of what a record can say */
        int64_t at = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(positions, found), &beyond);
        if (beyond || PyErr_Occurred() ||
            !is_sound((const uint8_t *)PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record), at))
            break;
    }
done:
    Py_XDECREF(records);
    Py_XDECREF(positions);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(found);
}

typedef struct {
    int64_t index, term, position, size;
    const uint8_t *record;
    Py_ssize_t record_size;
} LedgerEntry;

static int read_ledger_entry(PyObject *entry, LedgerEntry *e)
{
    if (PyTuple_Check(entry) && PyTuple_GET_SIZE(entry) == 5) {
        PyObject *record = PyTuple_GET_ITEM(entry, 4);
        for (int i = 0; i < 4; i++)
            if (!PyLong_Check(PyTuple_GET_ITEM(entry, i))) /* another could change between calls */
                goto odd;
        e->index = PyLong_AsLongLong(PyTuple_GET_ITEM(entry, 0));
        e->term = PyLong_AsLongLong(PyTuple_GET_ITEM(entry, 1));
        e->position = PyLong_AsLongLong(PyTuple_GET_ITEM(entry, 2));
        e->size = PyLong_AsLongLong(PyTuple_GET_ITEM(entry, 3));
        if (!PyErr_Occurred() && PyBytes_Check(record)) {
            e->record = (const uint8_t *)PyBytes_AS_STRING(record);
            e->record_size = PyBytes_GET_SIZE(record);
            if (e->size <= INT32_MAX && e->size == ENTRY_HEADER + e->record_size)
                return 1;
        }
    }
odd:
    PyErr_SetString(PyExc_ValueError, NO_ENTRY);
    return 0;
}

static PyObject *write_entries(PyObject *self, PyObject *args)
{
    PyObject *given, *data = NULL, *units = NULL;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(args, "On", &given, &first))
        return NULL;
    PyObject *entries = PySequence_Tuple(given);
    if (entries == NULL)
        return NULL;
    LedgerEntry e;
    int64_t index = 0, begin = 0, end = 0;
    Py_ssize_t n = PyTuple_GET_SIZE(entries), stop = first;
    if (first < 0 || first >= n) {
        PyErr_SetString(PyExc_ValueError, "there is no such entry");
        goto done;
    }
    for (; stop < n; stop++) {
        if (!read_ledger_entry(PyTuple_GET_ITEM(entries, stop), &e))
            goto done;
        if (stop == first)
            index = e.index, begin = end = e.position;
        if (index > INT64_MAX - (stop - first) || e.index != index + (stop - first) ||
            e.position != end || end > INT64_MAX - e.size)
            break;
        end += e.size;
    }
    data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(end - begin));
    units = PyBytes_FromStringAndSize(NULL, (stop - first) * ENTRY_UNIT);
    if (data == NULL || units == NULL)
        goto done;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(data), *unit = (uint8_t *)PyBytes_AS_STRING(units);
    for (Py_ssize_t i = first; i < stop; i++) {
        read_ledger_entry(PyTuple_GET_ITEM(entries, i), &e); /* the same as above: tuples do not change */
        put32(out, 1);
        put32(out + 4, (int32_t)e.size);
        put64(out + 8, e.index);
        put64(out + 16, e.term);
        put64(out + 24, e.position);
        memset(out + 32, 0, 12);
        put32(out + 44, (int32_t)e.record_size);
        memcpy(out + ENTRY_HEADER, e.record, (size_t)e.record_size);
        out += e.size;
        put32(unit, 1);
        put64(unit + 4, e.position);
        put32(unit + 12, (int32_t)e.size);
        put64(unit + 16, e.index);
        put64(unit + 24, e.term);
        unit += ENTRY_UNIT;
    }
done:
    Py_DECREF(entries);
    if (PyErr_Occurred()) {
        Py_XDECREF(data);
        Py_XDECREF(units);
        return NULL;
    }
    return Py_BuildValue("nNN", stop - first, data, units);
}

#endif
